"""`prefix-gateway keys`: what it prints is what the gateway takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gateway.auth.hashing import is_slow, matches
from gateway.auth.source import load_keyring
from gateway.cli.keys import command
from gateway.errors import ConfigError


def test_a_new_key_and_its_entry_fit_together(tmp_path: Path) -> None:
    for flags, slow in (((), False), (("--scrypt",), True)):
        found = CliRunner().invoke(command, ["new", "--id", "team-a", *flags])
        assert found.exit_code == 0
        secret = found.stdout.strip()
        assert secret.startswith("pgw_")
        assert secret not in found.stderr  # so that a redirected stdout keeps it to itself
        (entry,) = yaml.safe_load(
            "".join(ln for ln in found.stderr.splitlines(True) if not ln.startswith("#"))
        )
        assert entry["id"] == "team-a"
        assert is_slow(entry["hash"]) is slow
        assert matches(secret, entry["hash"])
        file = tmp_path / "keys.yaml"
        file.write_text(yaml.safe_dump({"keys": [entry]}))
        assert [key.id for key in load_keyring(file).keys] == ["team-a"]


@pytest.mark.parametrize("name", ["yes", "123", "1e3", "2027-01-31", "null", "0x1f", "a.b-c_d"])
def test_an_id_that_yaml_would_take_for_something_else_is_quoted(name: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(command, ["new", "--id", name])
    file = tmp_path / "keys.yaml"
    file.write_text("keys:\n" + found.stderr)  # with its comments, as one would paste it
    assert [key.id for key in load_keyring(file).keys] == [name]


@pytest.mark.parametrize("name", ["a b", "ünï", 'a"b: x', "", "-a", "a" * 65, "pgw_abc"])
def test_an_id_that_the_gateway_would_refuse_gets_no_key(name: str) -> None:
    found = CliRunner().invoke(command, ["new", "--id", name])
    assert (found.exit_code, found.stdout) == (1, "")
    assert isinstance(found.exception, ConfigError)
    assert found.exception.message.startswith("--id")


def test_the_hash_of_a_key_from_stdin() -> None:
    found = CliRunner().invoke(command, ["hash"], input="abc\n")
    # printf abc | sha256sum
    assert found.output.strip() == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert CliRunner().invoke(command, ["hash"], input="\n").exit_code != 0


def test_what_each_key_of_a_file_may(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    line = CliRunner().invoke(command, ["hash"], input="abc\n").output.strip()
    entry = {
        "id": "a",
        "hash": line,
        "models": ["x-*"],
        "max_parallel": 3,
        "cache_salt": "auto",
        "disabled": True,
    }
    file.write_text(yaml.safe_dump([entry]))
    found = CliRunner().invoke(command, ["check", str(file)])
    assert found.output == (
        "a: models x-*; priority 0, weight 1; any requests/min, any tokens/min, 3 parallel; "
        "cache its own; DISABLED\n"
    )
    entry |= {"allow": ["kv_transfer_params", "x-*"], "disabled": False}
    for expires, shown in (
        ("2999-01-31", "expires 2999-01-31 00:00 UTC"),
        ("2025-01-31T01:00:00+02:00", "EXPIRED 2025-01-30 23:00 UTC"),
    ):
        file.write_text(yaml.safe_dump([{**entry, "expires": expires}]))
        found = CliRunner().invoke(command, ["check", str(file)])
        assert found.output.endswith(f"cache its own; may say kv_transfer_params, x-*; {shown}\n")
    for never in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
        file.write_text(yaml.safe_dump([{**entry, "expires": never}]))
        assert "a date like 2027-01-31" in str(CliRunner().invoke(command, ["check", str(file)]).exception)
    file.write_text("keys: [{id: a, hash: pgw_plain}]")
    assert CliRunner().invoke(command, ["check", str(file)]).exit_code != 0
