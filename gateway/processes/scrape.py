"""One scrape of all processes: what they have, what those that ended had, and what the supervisor knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import httpx
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.errors import Unavailable
from gateway.metrics import Gauge, LiveState
from gateway.processes.crew import Crew, heard
from gateway.processes.ended import Ended, workers_in
from gateway.processes.families import Family, families_of
from gateway.processes.inside import PATH, families_in
from gateway.processes.member import Member
from gateway.processes.merge import merged


class Scrape:
    def __init__(self, crew: Crew, ended: Ended, supervised: Callable[[], Iterable[Gauge]]) -> None:
        """`supervised` are the supervisor's own gauges."""
        self._crew = crew
        self._ended = ended
        self._own = CollectorRegistry()
        ProcessCollector(registry=self._own)
        self._own.register(LiveState(supervised))

    async def families(self) -> list[Family]:
        asked = self._crew.answering()
        await asyncio.gather(*(self._read(member) for member in heard(asked)))
        # those that ended meanwhile are counted as such
        living = [member.seen for member in asked if member.alive]
        if living:
            self._ended.sweep(set().union(*(workers_in(families) for families in living)))
        return merged([*living, families_of(self._own.collect())], self._ended.families())

    async def _read(self, member: Member) -> None:
        """What it had when it was read last stands for one that does not answer."""
        try:
            answer = await member.line.get(PATH)
        except Unavailable:
            return
        if answer.status_code == httpx.codes.OK:
            member.seen = families_in(answer.content)


def supervisor_gauges(crew: Crew, wanted: int, crashes: int) -> Iterable[Gauge]:
    def one(name: str, text: str, value: float, *, counts: bool = False) -> Gauge:
        return Gauge(name, text, (), [((), value)], counts)

    serving = crew.serving()
    yield one("gateway_processes", "Gateway processes that there should be.", wanted)
    yield one(
        "gateway_processes_ready",
        "Gateway processes that take connections and are ready.",
        sum(member.ready for member in serving),
    )
    yield one(
        "gateway_process_crashes",
        "Processes that ended and were not told to; each is started again.",
        crashes,
        counts=True,
    )
    yield Gauge(
        "gateway_process_connections",
        "Open connections of clients, by process.",
        ("process",),
        [((str(member.number),), member.connections) for member in serving],
    )
