"""One scrape of all processes: what they have, what those that ended had, and what the supervisor knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpx
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.errors import Unavailable
from gateway.metrics import Gauge, LiveState
from gateway.processes.ended import workers_in
from gateway.processes.families import Family, families_of
from gateway.processes.inside import PATH, families_in
from gateway.processes.member import Member
from gateway.processes.merge import merged
from gateway.processes.supervisor import Supervisor


class Scrape:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.own = CollectorRegistry()
        """The supervisor's own metrics."""
        ProcessCollector(registry=self.own)
        self.own.register(LiveState(lambda: supervisor_gauges(supervisor)))

    async def families(self) -> list[Family]:
        asked = self._supervisor.crew.answering()
        await asyncio.gather(*(self._read(member) for member in asked))
        # those that ended meanwhile are counted as such
        living = [member.seen for member in asked if member.alive]
        ended = self._supervisor.care.ended
        if living:
            ended.sweep(set().union(*(workers_in(families) for families in living)))
        return merged([*living, families_of(self.own.collect())], ended.families())

    async def _read(self, member: Member) -> None:
        """What it had when it was read last stands for one that does not answer."""
        try:
            answer = await member.line.get(PATH)
        except Unavailable:
            return
        if answer.status_code == httpx.codes.OK:
            member.seen = families_in(answer.content)


def supervisor_gauges(supervisor: Supervisor) -> Iterable[Gauge]:
    serving = supervisor.crew.serving()
    yield Gauge(
        "gateway_processes", "Gateway processes that there should be.", (),
        [((), supervisor.settings.processes)],
    )  # fmt: skip
    yield Gauge(
        "gateway_processes_ready", "Gateway processes that take connections and are ready.", (),
        [((), sum(member.ready for member in serving))],
    )  # fmt: skip
    yield Gauge(
        "gateway_process_connections", "Open connections of clients, by process.", ("process",),
        [((str(member.number),), member.connections) for member in serving],
    )  # fmt: skip
    yield Gauge(
        "gateway_process_crashes", "Processes that ended and were not told to; each is started again.", (),
        [((), supervisor.crashes)], counts=True,
    )  # fmt: skip
