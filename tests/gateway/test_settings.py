from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.options import Given
from gateway.errors import ConfigError
from gateway.settings import Settings, load
from gateway.settings_file import ConfigFile


def test_defaults_serve_on_loopback_with_admin_beside() -> None:
    settings = load({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert (settings.admin_host, settings.resolved_admin_port) == ("127.0.0.1", 8081)
    assert settings.workers == ()


def test_flag_over_variable_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("policy: product\ntries: 5\nworkers: [http://file:1]\nidle-timeout: 7\n")
    monkeypatch.setenv("GATEWAY_TRIES", "4")
    monkeypatch.setenv("GATEWAY_WORKERS", "http://a:1 http://b:2,events=tcp://b:3")
    settings = load({"policy": "round_robin"}, file)
    assert settings.policy == "round_robin"
    assert settings.tries == 4
    assert settings.workers == ("http://a:1", "http://b:2,events=tcp://b:3")
    assert settings.idle_timeout == 7


def test_an_empty_variable_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("tries: 5\n")
    for name in ("GATEWAY_REDIS_URL", "GATEWAY_WORKERS", "GATEWAY_TRIES"):
        monkeypatch.setenv(name, "")
    settings = load({}, file)
    assert (settings.redis_url, settings.workers, settings.tries) == (Settings().redis_url, (), 5)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ({"port": 70000}, "port"),
        ({"tries": 0}, "tries"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"door": "ajar"}, "door"),
        ({"port": 9000, "admin_port": 9000}, "give one of them another"),
    ],
)
def test_what_cannot_work_is_named(flags: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(flags)


def test_a_misspelt_key_of_the_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("polcy: product\n")
    with pytest.raises(ConfigError, match="polcy"):
        load({}, file)


def test_a_misspelt_variable_is_an_error_that_names_its_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PROT", "1")
    monkeypatch.setenv("GATEWAY_XYZZY", "1")
    with pytest.raises(ConfigError) as refused:
        load({})
    first, second = refused.value.message.splitlines()
    assert first.startswith("GATEWAY_PROT: no such setting; is it ")
    assert "GATEWAY_PORT" in first
    assert second == "GATEWAY_XYZZY: no such setting"


def test_variables_of_commands_and_of_services_beside_it_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN_URL", "http://gateway:8081")
    # a service called gateway-redis in the same namespace, as Kubernetes tells of it
    monkeypatch.setenv("GATEWAY_REDIS_SERVICE_HOST", "10.0.0.9")
    monkeypatch.setenv("GATEWAY_REDIS_SERVICE_PORT", "6379")
    monkeypatch.setenv("GATEWAY_REDIS_PORT", "tcp://10.0.0.9:6379")
    monkeypatch.setenv("GATEWAY_REDIS_PORT_6379_TCP_ADDR", "10.0.0.9")
    assert load({}).port == 8080
    monkeypatch.setenv("GATEWAY_REDIS_UEL", "redis://10.0.0.9")
    with pytest.raises(ConfigError, match="GATEWAY_REDIS_URL"):
        load({})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"a: [1,", "line 1: not YAML"),
        (b"tries: 3\npolicy: product\ntries: 4", "line 3: 'tries' stands here again, after line 1"),
        (b"aliases:\n  a: x\n  a: y", "line 3: 'a' stands here again, after line 2"),
        (b"idle-timeout: 7\nidle_timeout: 8", "line 2: idle_timeout is a second time what "),
        (b"policy: \xe9", "line 1: not UTF-8"),
        (b"seed: 2026-13-01", "line 1: what stands there is not a date"),
        (b"- policy", "settings are wanted, a line `name: value` for each"),
    ],
)
def test_a_file_that_can_not_be_read_as_meant(tmp_path: Path, text: bytes, says: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as refused:
        load({}, file)
    assert refused.value.message.startswith(str(file))
    assert says in refused.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load({}, tmp_path / "absent.yaml")


def test_a_file_that_spoke_is_not_taken_for_one_that_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("# all as it is without me\n")
    file = ConfigFile(path)
    assert load({}, file).tries == 3
    path.write_text("tries: 5\n")
    assert load({}, file).tries == 5
    path.write_text("")
    with pytest.raises(ConfigError, match="says nothing at all, and did before"):
        load({}, file)
    path.write_text("{}")
    assert load({}, file).tries == 3


def test_a_name_is_given_to_one_flag_of_a_kind() -> None:
    assert Given({"aliases": ("a=x", "b=y")})().aliases == {"a": "x", "b": "y"}
    with pytest.raises(ConfigError, match="aliases: 'a' is given twice"):
        Given({"aliases": ("a=x", "a=y")})
