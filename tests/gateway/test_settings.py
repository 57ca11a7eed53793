from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.options import Given
from gateway.errors import ConfigError
from gateway.settings import Settings
from gateway.settings_file import ConfigFile
from gateway.settings_load import load


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
    ("flags", "says"),
    [
        ({"port": 70000}, "port: 65535 at most is wanted, not 70000"),
        ({"tries": 0}, "tries: 1 or more is wanted, not 0"),
        ({"tries": 1.5}, "tries: a whole number is wanted, not 1.5"),
        ({"tries": None}, "tries: a whole number is wanted, not nothing"),
        ({"connect_timeout": 0}, "connect_timeout: more than 0 is wanted, not 0"),
        *(
            ({name: value}, f"{name}: 1000000000 at most is wanted, not {shown}")
            for name, value, shown in [
                ("max_ttft", "1e308", "'1e308'"),
                ("slice_after", "1e308", "'1e308'"),
                ("slice_tokens", "1" + "0" * 400, f"'1{'0' * 38}…"),
                ("queue_wait", "1e308", "'1e308'"),
                ("breaker_rest", "1e308", "'1e308'"),
                ("slow_start", "1e308", "'1e308'"),
                ("worker_max_requests", "1000000001", "'1000000001'"),
                ("placement_ttl", "1e308", "'1e308'"),
            ]
        ),
        ({"health_interval": "5e-324"}, "health_interval: 0.01 or more is wanted, not '5e-324'"),
        ({"dns_interval": "5e-324"}, "dns_interval: 0.01 or more is wanted, not '5e-324'"),
        ({"connect_timeout": "nan"}, "connect_timeout: a finite number is wanted, not 'nan'"),
        ({"door": "ajar"}, "door: one of strip, refuse, off is wanted, not 'ajar'"),
        ({"access_log": "perhaps"}, "access_log: true or false is wanted, not 'perhaps'"),
        ({"redis_prefix": 7}, "redis_prefix: a text is wanted, not 7"),
        ({"workers": {"a": "b"}}, "workers: a list is wanted, not a mapping"),
        ({"workers": ["http://a:1", {"url": "b"}]}, "workers: entry 2: a text is wanted, not a mapping"),
        ({"workers": "['http://a:1']"}, "workers: several are separated by blanks, without brackets"),
        ({"aliases": ["a"]}, "aliases: a mapping, `name: value`, is wanted, not a list"),
        ({"aliases": {"a": True}}, "aliases: 'a': a text is wanted, not true"),
        ({"api_keys_file": 5}, "api_keys_file: a path is wanted, not 5"),
        (
            {"api_keys_file": ""},
            "api_keys_file: a path is wanted; where there is none, the setting is left out",
        ),
        ({"tries": "9" * 5000}, f"tries: a whole number is wanted, not '{'9' * 39}…"),
        ({"admin_token": 12345678}, "admin_token: a text is wanted"),
        ({"redis_url": 12345678}, "redis_url: a text is wanted"),
        ({"port": 9000, "admin_port": 9000}, "port and admin_port are both 9000: give one of them another"),
        ({"port": 65535}, "no port comes after 65535 for admin: give admin_port, or a lower port"),
        ({"dns_names": ["a:1"]}, "dns_names is for discovery: dns, and discovery is static"),
        (
            {"discovery": "dns", "kubernetes_selector": "app=a"},
            "kubernetes_selector is for discovery: kubernetes, and discovery is dns",
        ),
        (
            {"otlp_endpoint": "collector:4317"},
            "otlp_endpoint: a URL like http://collector:4318/v1/traces is wanted",
        ),
    ],
)
def test_what_cannot_work_is_named(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags)
    assert refused.value.message == says


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        ("example.com", "'example.com' is no origin: scheme, host and port"),
        ("https://a.example/", "is no origin"),
        ("https://A.example", "is no origin"),
        ("https://a,https://b", "several are separated by blanks"),
        ("https://gw:hunter2@a", "'https://…@a' is no origin"),
        ("https://a:443", "browsers leave the standard port out"),
        ("http://[::1]:80", "browsers leave the standard port out"),
    ],
)
def test_an_origin_that_no_page_has(origin: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"cors_origins": (origin,)})
    assert says in refused.value.message
    assert "hunter2" not in refused.value.message


def test_origins_of_pages() -> None:
    origins = (
        "https://a.example",
        "http://[::1]:3000",
        "http://10.0.0.1:8080",
        "tauri://localhost",
        "null",
        "*",
    )
    assert load({"cors_origins": origins}).cors_origins == origins


def test_what_is_at_fault_is_named_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("polcy: product\ntries: 0\nqueue-size: -1\nqueue_wait: -1\nxyzzy: 1\nworkers: []\n")
    monkeypatch.setenv("GATEWAY_QUEUE_WAIT", "x")
    monkeypatch.setenv("GATEWAY_TRYS", "1")
    with pytest.raises(ConfigError) as refused:
        load({"workers": 5, "host": 1}, file, {"workers": "--worker"})
    assert refused.value.message.splitlines() == [
        "GATEWAY_TRYS: no such setting; is it GATEWAY_TRIES?",
        f"{file}, line 1: polcy: no such setting; is it policy?",
        f"{file}, line 5: xyzzy: no such setting",
        "host: a text is wanted, not 1",
        "--worker: a list is wanted, not 5",
        f"{file}, line 2: tries: 1 or more is wanted, not 0",
        f"{file}, line 3: queue-size: 0 or more is wanted, not -1",
        "GATEWAY_QUEUE_WAIT: a number is wanted, not 'x'",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a=b", 'GATEWAY_ALIASES: a JSON object is wanted, like {"name": "value"}'),
        ('["a"]', "GATEWAY_ALIASES: a mapping, `name: value`, is wanted, not a list"),
        ('{"a": "x", "b": "x", "a": "y"}', "GATEWAY_ALIASES: 'a' stands there twice"),
    ],
)
def test_a_mapping_in_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    monkeypatch.setenv("GATEWAY_ALIASES", text)
    with pytest.raises(ConfigError) as refused:
        load({})
    assert refused.value.message == says


def test_every_list_in_the_environment_is_separated_by_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_DOOR_FIELDS", "one two")
    monkeypatch.setenv("GATEWAY_CORS_ORIGINS", "https://a  https://b")
    assert (load({}).door_fields, load({}).cors_origins) == (("one", "two"), ("https://a", "https://b"))


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
