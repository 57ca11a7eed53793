"""What a reload may not do to a gateway that runs, with one process and with two."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.auth.hashing import sha256_of
from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.replicas import answers, site
from tests.servers import standalone

TOKEN = "the-operators-own-token"
WORKER = "http://127.0.0.1:9"
"""Nobody is there, which no reload asks about."""


@dataclass
class Running:
    gateway: Fleet
    config: Path
    said: dict[str, object]
    """In the config file, at first."""

    def reload(self, text: str) -> str:
        """What the log says of it."""
        self.config.write_text(text)
        before = len(self._words())
        self.gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(self._words()) > before, what="a word about the reload")
        return self._words()[-1]

    def _words(self) -> list[str]:
        lines = self.gateway.log.read_text().splitlines()
        return [line for line in lines if '"settings reloaded"' in line or '"the settings were not' in line]

    def admin(self, path: str = "/admin/policy", token: str | None = None) -> int:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.get(self.gateway.admin + path, headers=headers, trust_env=False, timeout=10).status_code

    def public(self) -> int:
        return httpx.get(self.gateway.url + "/v1/models", trust_env=False, timeout=10).status_code

    def workers(self) -> list[str]:
        headers = {"authorization": f"Bearer {TOKEN}"}
        url = self.gateway.admin + "/admin/workers"
        rows = httpx.get(url, headers=headers, trust_env=False, timeout=10).json()["workers"]
        return [row["id"] for row in rows]


@pytest.fixture(params=[1, 2], scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("refusals")
    keys, token = folder / "keys.json", folder / "token"
    keys.write_text(json.dumps([{"id": "a", "hash": sha256_of("a")}]))
    token.write_text(TOKEN)
    said: dict[str, object] = {
        "admin_host": "0.0.0.0", "admin_token_file": str(token), "api_keys_file": str(keys),
        "workers": [WORKER], "processes": request.param,
    }  # fmt: skip
    config = folder / "gateway.yaml"
    config.write_text(yaml.safe_dump(said))
    with ExitStack() as stack:
        redis = stack.enter_context(standalone(folder / "redis")).url if request.param > 1 else None
        here = stack.enter_context(site(folder / "site", redis))
        gateway = here.gateway("--config", str(config))
        wait_until(lambda: answers(gateway.admin + "/health"), 110, "an admin port")
        started = Running(gateway, config, said)
        wait_until(lambda: started.admin(token=TOKEN) == 200, 110, "processes that answer")
        yield started


def without(said: dict[str, object], *names: str) -> str:
    return yaml.safe_dump({name: value for name, value in said.items() if name not in names})


def test_an_open_admin_port_keeps_its_credential(running: Running) -> None:
    assert running.admin() == 401
    word = running.reload(without(running.said, "admin_host", "admin_token_file"))
    assert "the admin port stays on 0.0.0.0 until a restart" in word
    assert (running.admin(), running.admin(token=TOKEN)) == (401, 200)
    word = running.reload(without(running.said, "admin_host"))
    assert '"waiting_for_restart": ["admin_host"]' in word
    assert (running.admin(), running.admin(token=TOKEN)) == (401, 200)
    running.reload(yaml.safe_dump(running.said))


def test_a_file_that_says_nothing_changes_nothing(running: Running) -> None:
    for text in ("", "\n# soon\n"):
        assert f"{running.config} says nothing at all" in running.reload(text)
        assert (running.public(), running.admin(), running.workers()) == (401, 401, [WORKER])
    assert "settings reloaded" in running.reload(yaml.safe_dump(running.said))


def test_settings_that_serve_would_not_start_with_change_nothing(running: Running) -> None:
    for text in (without(running.said, "workers"), yaml.safe_dump({**running.said, "workers": []})):
        assert "no workers: give --worker" in running.reload(text)
        assert running.workers() == [WORKER]
    assert "settings reloaded" in running.reload(yaml.safe_dump(running.said))


def test_a_file_that_says_other_things_may_let_everybody_in(running: Running) -> None:
    assert "settings reloaded" in running.reload(without(running.said, "api_keys_file"))
    assert running.public() == 200
    assert "settings reloaded" in running.reload(yaml.safe_dump(running.said))
    assert running.public() == 401
