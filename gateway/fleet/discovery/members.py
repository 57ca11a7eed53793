"""Brings the registry in line with what one source lists. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.errors import ConfigError
from gateway.fleet.registry import Registry
from gateway.fleet.worker import WorkerSpec, WorkerState
from gateway.types import WorkerId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """One engine as a source lists it."""

    spec: WorkerSpec
    name: str
    """For a person: ``pod chat/vllm-0``."""
    life: str = ""
    """Another life under the same address (a new pod that got an old one's IP) is another worker."""
    not_ready: str | None = None
    """Why it must get nothing new; None where it may."""


class Members:
    """Owns the workers that it added. Those of others are left alone, and so is what an operator drained."""

    def __init__(self, registry: Registry, source: str) -> None:
        self._registry = registry
        self._source = source
        self._ours: dict[WorkerId, Member] = {}
        self._refused: dict[WorkerId, str] = {}

    def __len__(self) -> int:
        return len(self._ours)

    @property
    def refused(self) -> int:
        """Listed workers that can't join."""
        return len(self._refused)

    def replace(self, listed: Iterable[Member]) -> None:
        """`listed` is all that the source lists now: what is missing in it leaves at once."""
        wanted: dict[WorkerId, Member] = {}
        for member in listed:
            known = wanted.get(member.spec.id)
            # a source may list an endpoint twice while it moves between slices: the ready one counts
            if known is None or known.not_ready is not None:
                wanted[member.spec.id] = member
        for worker in self._ours.keys() - wanted.keys():
            self._remove(worker, "no longer listed")
        for member in wanted.values():
            self._take(member)
        self._refused = {worker: why for worker, why in self._refused.items() if worker in wanted}

    def keep_the_answering(self) -> None:
        """The source lists nobody, which an outage of it can look like: who answers health checks stays."""
        for worker in list(self._ours):
            known = self._registry.get(worker)
            if known is None or known.state in (WorkerState.UNHEALTHY, WorkerState.STARTING):
                self._remove(worker, "neither listed nor answering")

    def _take(self, member: Member) -> None:
        worker = member.spec.id
        known = self._ours.get(worker)
        if known is not None and not _same(known, member):
            self._remove(worker, "listed anew")
            known = None
        if known is None:
            if member.not_ready is not None or not self._add(member):
                return
        elif known.spec.weight != member.spec.weight:
            self._registry.set_weight(worker, member.spec.weight)
        if (known.not_ready if known is not None else None) != member.not_ready:
            self._registry.withhold(worker, member.not_ready)
            log.info(
                "a worker is %s", "not ready" if member.not_ready else "ready again",
                extra={"worker": worker, "listed_as": member.name, "reason": member.not_ready or ""},
            )  # fmt: skip
        self._ours[worker] = member

    def _add(self, member: Member) -> bool:
        worker = member.spec.id
        try:
            self._registry.add(member.spec)
        except ConfigError as error:
            if self._refused.get(worker) != error.message:
                log.warning(
                    "a listed worker can't join",
                    extra={"worker": worker, "listed_as": member.name, "reason": error.message},
                )
            self._refused[worker] = error.message
            return False
        self._refused.pop(worker, None)
        log.info(
            "a worker joined", extra={"worker": worker, "listed_as": member.name, "source": self._source}
        )
        return True

    def _remove(self, worker: WorkerId, reason: str) -> None:
        member = self._ours.pop(worker)
        self._registry.remove(worker)
        log.info("a worker left", extra={"worker": worker, "listed_as": member.name, "reason": reason})


def _same(known: Member, listed: Member) -> bool:
    """Whether what is known of its cache still holds: a weight may change, all else is another worker."""
    return known.life == listed.life and replace(known.spec, weight=1.0) == replace(listed.spec, weight=1.0)
