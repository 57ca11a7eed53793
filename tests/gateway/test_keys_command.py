"""`prefix-gateway keys`: what it prints is what the gateway takes."""

from __future__ import annotations

from pathlib import Path

import yaml
from click.testing import CliRunner

from gateway.auth.hashing import is_slow, matches
from gateway.auth.source import load_keyring
from gateway.cli.keys import command


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
    file.write_text("keys: [{id: a, hash: pgw_plain}]")
    assert CliRunner().invoke(command, ["check", str(file)]).exit_code != 0
