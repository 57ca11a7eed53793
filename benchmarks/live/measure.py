"""One router, one plan, one turn: cold engines, a router that knows them all, and then the plan."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from benchmarks.children import running
from benchmarks.fleet import free_row
from benchmarks.live.client import Client, Heard, Message
from benchmarks.live.engines import MODEL, Counters, Fleet
from benchmarks.live.plan import Plan, Turn, window
from benchmarks.live.play import Answer, play
from benchmarks.live.processes import cores_busy_s, group_cpu_s, wait_until
from benchmarks.live.routers import Entry
from benchmarks.ratios import ratio
from benchmarks.replay.outcome import quantile

READY_S = 60.0
Target = Callable[[Turn], int]
"""Which port a turn is sent to."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    workload: str
    router: str
    round: int
    requests: int
    failed: int
    hit_rate: float
    """Cached tokens over all prompt tokens, by the engines' own counters."""
    balance: float
    """Prefilled tokens of the busiest engine over the mean's."""
    ttft_p50_s: float
    ttft_p99_s: float
    goodput_rps: float
    """Requests a second within the limit, over the time in which they were due; NaN where all were due at
    once."""
    within_slo: float
    router_cpu_ms: float
    """CPU of the router a request."""
    cores_busy: float
    """Share of the usable cores that was busy, with whatever."""
    client_late_p99_s: float


def measure(
    entry: Entry, plan: Plan, fleet: Fleet, number: int, scratch: Path, tick: Callable[[], None]
) -> LiveRow:
    """Raises RuntimeError where the router does not start or does not reach every engine."""
    fleet.forget()
    with _router(entry, fleet, scratch) as (target, pid):
        cores = os.sched_getaffinity(0)
        before, cpu = fleet.counters(), group_cpu_s(pid) if pid else 0.0
        busy, began = cores_busy_s(cores), time.monotonic()
        answers = asyncio.run(_played(plan, target, tick))
        seconds = time.monotonic() - began
        busy = (cores_busy_s(cores) - busy) / (seconds * len(cores))
        cpu = (group_cpu_s(pid) if pid else 0.0) - cpu
        counted = [b.since(a) for a, b in zip(before, fleet.counters(), strict=True)]
    return row_of(entry.name, plan, number, answers, counted, cpu, busy)


def row_of(
    router: str,
    plan: Plan,
    number: int,
    answers: Sequence[Answer],
    counted: Sequence[Counters],
    cpu_s: float,
    busy: float,
) -> LiveRow:
    ttfts = sorted(a.ttft_s for a in answers if a.ok) or [float("nan")]
    good = sum(1 for ttft in ttfts if ttft <= plan.slo_ttft_s)
    prefilled = [c.asked - c.cached for c in counted]
    goodput = ratio(good, window(plan.turns))
    return LiveRow(
        workload=plan.name,
        router=router,
        round=number,
        requests=len(answers),
        failed=sum(not a.ok for a in answers),
        hit_rate=sum(c.cached for c in counted) / max(1.0, sum(c.asked for c in counted)),
        balance=max(prefilled) * len(prefilled) / max(1.0, sum(prefilled)),
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p99_s=quantile(ttfts, 0.99),
        goodput_rps=float("nan") if goodput is None else goodput,
        within_slo=good / len(answers),
        router_cpu_ms=cpu_s / len(answers) * 1e3,
        cores_busy=busy,
        client_late_p99_s=quantile(sorted(a.late_s for a in answers), 0.99),
    )


async def _played(plan: Plan, target: Target, tick: Callable[[], None]) -> list[Answer]:
    client = Client()

    def ask(turn: Turn, messages: list[Message]) -> Awaitable[Heard]:
        return client.chat(target(turn), MODEL, messages, turn.answer_tokens, turn.session)

    try:
        return await play(plan, ask, tick)
    finally:
        client.close()


@contextmanager
def _router(entry: Entry, fleet: Fleet, scratch: Path) -> Iterator[tuple[Target, int | None]]:
    if entry.command is None:
        yield _pinned(fleet.ports), None
        return
    # peers are told to export their metrics a few ports on
    port = free_row(5, Random())
    log = scratch / f"{entry.name}.log"
    with running(entry.command(fleet, port, port + 1, scratch), log) as process:
        if entry.says_ready:
            wait_until(lambda: _says_ready(port), process, log, READY_S)
        wait_until(lambda: _reaches_all(port, fleet), process, log, READY_S)
        yield lambda turn: port, process.pid


def _pinned(ports: Sequence[int]) -> Target:
    """Sessions in turn, in the order in which they are first seen."""
    places: dict[str, int] = {}
    return lambda turn: ports[places.setdefault(turn.session, len(places)) % len(ports)]


def _says_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _reaches_all(port: int, fleet: Fleet) -> bool:
    """Sixteen short chats at once; true when each engine got at least one of them. Peers look their workers
    up one after another once they listen."""
    before = fleet.counters()
    asyncio.run(_greet(port))
    return all(b.asked > a.asked for a, b in zip(before, fleet.counters(), strict=True))


async def _greet(port: int) -> None:
    client = Client(timeout=10.0)
    try:
        greetings = [[{"role": "user", "content": f"{n} good morning from {n}"}] for n in range(16)]
        await asyncio.gather(*(client.chat(port, MODEL, said, 8, f"greeter-{said}") for said in greetings))
    finally:
        client.close()
