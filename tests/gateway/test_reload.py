"""New settings for a gateway that runs, in this process: what changes, what stays, what waits."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trustme

from gateway.app import build
from gateway.auth.hashing import sha256_of
from gateway.auth.watch import FileWatch
from gateway.errors import ConfigError, Unauthorized
from gateway.fleet.worker import WorkerSpec
from gateway.routing.policies.estimated_ttft import EstimatedTTFT
from gateway.routing.registry import make_policy
from gateway.settings import Settings
from gateway.settings_load import load
from gateway.types import WorkerId

pytestmark = pytest.mark.anyio

A, B, C, D = (f"http://127.0.0.1:{port}" for port in (1, 2, 3, 4))


@pytest.fixture(autouse=True)
def quiet_root() -> Iterator[None]:
    """A reload may set the root logger's level."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def settings(**more: object) -> Settings:
    return load({"port": 0, "admin_port": 0, "workers": (A, B), **more})


async def test_workers_come_and_go_and_those_of_others_stay() -> None:
    async with build(settings()) as app:
        app.registry.add(WorkerSpec(C))  # through admin
        kept = app.registry.get(WorkerId(B))
        waiting = app.reloader.reload(settings(workers=(f"{B},weight=2.5", D)))
        assert waiting == []
        assert [worker.id for worker in app.registry.workers()] == [B, C, D]
        assert app.registry.get(WorkerId(B)) is kept  # with all that is known of it
        assert kept is not None
        assert kept.spec.weight == 2.5
        app.reloader.reload(settings(workers=(B,)))
        assert [worker.id for worker in app.registry.workers()] == [B, C]


async def test_a_worker_that_somebody_added_by_hand_first_is_no_obstacle() -> None:
    async with build(settings()) as app:
        app.registry.add(WorkerSpec(C))
        app.reloader.reload(settings(workers=(A, B, C, D)))
        assert {worker.id for worker in app.registry.workers()} == {A, B, C, D}


async def test_a_worker_whose_line_changed_is_followed_anew() -> None:
    async with build(settings()) as app:
        before = app.registry.get(WorkerId(B))
        app.reloader.reload(settings(workers=(A, f"{B},events=tcp://127.0.0.1:5")))
        after = app.registry.get(WorkerId(B))
        assert after is not None
        assert after is not before
        assert after.spec.events == "tcp://127.0.0.1:5"


async def test_what_can_not_change_waits_and_is_named() -> None:
    async with build(settings()) as app:
        new = settings(max_connections=9, index_max_blocks=5, tries=7, log_level="error")
        assert app.reloader.reload(new) == ["index_max_blocks", "max_connections"]
        assert logging.getLogger().level == logging.ERROR
        # and again: what waits goes on waiting for as long as it is not what was started with
        assert app.reloader.reload(new) == ["index_max_blocks", "max_connections"]


async def test_a_policy_that_was_switched_by_hand_stays_until_the_settings_speak_of_it() -> None:
    async with build(settings()) as app:
        app.router.policies.set(make_policy("product", {}, random=Random(1)))
        app.reloader.reload(settings(tries=2))
        assert app.router.policies.names() == {"*": "product"}
        app.reloader.reload(settings(policy="round_robin"))
        assert app.router.policies.names() == {"*": "round_robin"}


async def test_keys_begin_and_cease_to_be_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(json.dumps([{"id": "a", "hash": sha256_of("a")}]))
    async with build(settings()) as app:
        gate = app.security.gate
        assert await gate.identify([]) is None
        app.reloader.reload(settings(api_keys_file=file))
        with pytest.raises(Unauthorized):
            await gate.identify([])
        key = await gate.identify([(b"x-api-key", b"a")])
        assert key is not None
        assert key.id == "a"
        app.reloader.reload(settings())
        assert await gate.identify([]) is None


ELSEWHERE = {"admin_host": "0.0.0.0", "admin_token": "sixteen-characters"}


async def test_an_open_admin_port_keeps_its_token_whatever_settings_say_of_its_address() -> None:
    async with build(settings(**ELSEWHERE)) as app:
        stored = app.admin.stored
        assert stored is not None
        for new in (settings(), settings(admin_host="127.0.0.1")):
            with pytest.raises(ConfigError, match=r"the admin port stays on 0\.0\.0\.0 until a restart"):
                app.reloader.reload(new)
            assert (app.admin.stored, app.reloader.settings.admin_host) == (stored, "0.0.0.0")
        with_token = settings(admin_host="127.0.0.1", admin_token="another-of-16-characters")
        assert app.reloader.reload(with_token) == ["admin_host"]
        assert app.admin.stored not in (stored, None)


async def test_certificates_that_only_later_connections_show_are_no_credential(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(server)
    authority.cert_pem.write_to_path(ca)
    tls = {"admin_tls_cert": server, "admin_tls_key": server}
    mutual = {**tls, "admin_tls_client_ca": ca}
    async with build(settings(**ELSEWHERE, **tls)) as app:
        with pytest.raises(ConfigError, match="the client certificates that it was started with"):
            app.reloader.reload(settings(admin_host="0.0.0.0", **mutual))
        assert (app.admin.stored is None, app.admin.certified) == (False, False)
    async with build(settings(admin_host="0.0.0.0", **mutual)) as app:
        assert (app.admin.stored, app.admin.certified) == (None, True)
        assert app.reloader.reload(settings(admin_host="0.0.0.0", **mutual)) == []
        assert app.admin.certified
        app.reloader.reload(settings(**ELSEWHERE, **tls))
        assert (app.admin.stored is None, app.admin.certified) == (False, False)
        with pytest.raises(ConfigError, match="needs there the credential that it has"):
            app.reloader.reload(settings(admin_host="0.0.0.0", **mutual))  # who came meanwhile showed none


@pytest.mark.parametrize(
    "bad",
    [
        {"policy": "nonsense"},
        {"workers": (A, A)},
        {"workers_file": Path("/nowhere/at/all")},
        {"api_keys_file": Path("/nowhere/at/all")},
        {"admin_token": "short"},
        {"worker_api_key_file": Path("/nowhere/at/all")},
        {"tls_cert": Path("/nowhere/at/all")},
    ],
)
async def test_all_or_nothing(bad: dict[str, object]) -> None:
    first = settings()
    async with build(first) as app:
        with pytest.raises(ConfigError):
            app.reloader.reload(settings(**{"workers": (A, D), "aliases": {"x": "y"}, **bad}))
        assert [worker.id for worker in app.registry.workers()] == [A, B]
        assert app.reloader.settings is first
        assert app.reloader.reload(settings()) == []


def test_a_changed_file_is_noticed_once_however_it_is_written(tmp_path: Path) -> None:
    file, real, calls = tmp_path / "keys", tmp_path / "real", []
    watch = FileWatch(lambda: [file], lambda: calls.append(1), interval=1)
    watch.look()
    assert calls == []
    file.write_text("one")
    watch.look()
    watch.look()
    assert len(calls) == 1
    real.write_text("two")  # as mounted secrets change: by a link
    file.unlink()
    file.symlink_to(real)
    watch.look()
    watch.look()
    assert len(calls) == 2
    file.unlink()
    watch.look()
    assert len(calls) == 3


@pytest.mark.parametrize("value", ["-1", "inf", "nan", "1e308", -1, float("inf"), 1e308])
async def test_a_parameter_that_no_policy_can_have_is_refused_at_the_start_and_at_a_reload(
    value: object,
) -> None:
    wrong = settings(policy_params={"affinity_weight": value})
    wanted = "policy 'estimated_ttft': affinity_weight=.* is no number from 0 to 1,000,000"
    with pytest.raises(ConfigError, match=wanted):
        build(wrong)
    async with build(settings(policy_params={"affinity_weight": 2})) as app:
        with pytest.raises(ConfigError, match=wanted):
            app.reloader.reload(wrong)
        policy = app.router.policies.of("m")
        assert isinstance(policy, EstimatedTTFT)
        assert policy.affinity_weight == 2
