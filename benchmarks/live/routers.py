"""What is compared: this gateway with a few policies, every installed peer, and no router at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.engines import MODEL, Fleet
from benchmarks.live.words import TOKENIZER
from benchmarks.wire.routers import installed_peers
from gateway.routing.registry import DEFAULT_POLICY

PINNED = "pinned, no router"
"""The client itself sends each session to one engine, in turn: perfect affinity, no hop."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`command` starts it on the given port, in front of the fleet; None where there is nothing to start."""

    name: str
    command: Callable[[Fleet, int, int, Path], list[str]] | None = None
    says_ready: bool = False
    """At `/ready`: a gateway that still reads tokenizer files serves, and routes by load."""


def lineup(policies: Sequence[str], scratch: Path, peers: Sequence[str]) -> list[Entry]:
    """`peers` are the wanted ones; those that are not installed are left out."""
    entries = [Entry(PINNED)]
    entries += [Entry(our_name(policy), _ours(policy), says_ready=True) for policy in policies]
    there = {router.name for router in installed_peers([], 0, scratch)}
    entries += [Entry(peer, _peer(peer)) for peer in peers if peer in there]
    return entries


def our_name(policy: str) -> str:
    return "ours" if policy == DEFAULT_POLICY else f"ours, {policy}"


def _ours(policy: str) -> Callable[[Fleet, int, int, Path], list[str]]:
    def command(fleet: Fleet, port: int, admin: int, scratch: Path) -> list[str]:
        line = [sys.executable, "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin)]
        line += ["--no-access-log", "--policy", policy, "--tokenizer", f"{MODEL}={TOKENIZER}"]
        for engine in fleet.engines:
            line += ["--worker", engine.worker]
        return line

    return command


def _peer(name: str) -> Callable[[Fleet, int, int, Path], list[str]]:
    def command(fleet: Fleet, port: int, admin: int, scratch: Path) -> list[str]:
        found = installed_peers(fleet.ports, port, scratch)
        return next(router.command for router in found if router.name == name)

    return command
