"""The fleet's list of workers: who is in, in which state, and who serves a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.errors import ConfigError
from gateway.fleet.load import LoadBoard
from gateway.fleet.models_seen import ModelsSeen
from gateway.fleet.pool import Target, build_targets, nobodys, refuse_mixed_blocks
from gateway.fleet.probe import Learned
from gateway.fleet.worker import LEAST_WEIGHT, MOST_WEIGHT, EngineInfo, Worker, WorkerSpec, WorkerState
from gateway.kv.keys import BLOCK_SIZE
from gateway.types import Clock, WorkerId


class FleetListener(Protocol):
    """Told of every change, in the order in which they were subscribed (index before followers)."""

    def added(self, worker: Worker) -> None: ...

    def changed(self, worker: Worker) -> None:
        """Its state, its weight, or what its engine says of itself is another."""
        ...

    def removed(self, worker: Worker) -> None: ...


@dataclass(slots=True)
class _Entry:
    worker: Worker
    healthy: bool | None = None
    health_reason: str = "its engine has not answered yet"
    draining: bool = False
    drain_reason: str = ""
    withheld: str | None = None
    """Why its source does not want it used now, though it stays listed."""


class Registry:
    """All calls are synchronous: a change is whole before anybody routes on it."""

    def __init__(
        self,
        board: LoadBoard,
        clock: Clock,
        *,
        aliases: Mapping[str, str] | None = None,
        declared: Iterable[str] = (),
        max_requests: int | None = None,
        seen: ModelsSeen | None = None,
    ) -> None:
        """`declared` are models that exist even while nobody serves them (503, not 404), and so do those that
        were `seen` not too long ago. `max_requests` bounds workers that name no bound of their own."""
        self._board = board
        self._clock = clock
        self._aliases = dict(aliases or {})
        self._declared = tuple(declared)
        self._max_requests = max_requests
        self._seen = seen
        self._entries: dict[WorkerId, _Entry] = {}
        self._listeners: list[FleetListener] = []
        self._targets: dict[str, Target] | None = None

    def __repr__(self) -> str:
        states = ", ".join(f"{worker.id} {worker.state.value}" for worker in self.workers())
        return f"<Registry {states or 'empty'}>"

    def subscribe(self, listener: FleetListener) -> None:
        """Those already in are told at once."""
        self._listeners.append(listener)
        for entry in self._entries.values():
            listener.added(entry.worker)

    def add(self, spec: WorkerSpec) -> Worker:
        """Raises ConfigError where it is in already, or its block size can't join its model's pool."""
        if spec.id in self._entries:
            raise ConfigError(f"worker {spec.id!r} is registered already")
        worker = Worker(spec, reason="its engine has not answered yet", since=self._clock())
        if spec.model is not None and spec.block_size is not None:
            refuse_mixed_blocks(worker, spec.model, spec.block_size, self.workers())
        self._entries[spec.id] = _Entry(worker)
        self._apply_bounds(worker)
        self._targets = None
        for listener in self._listeners:
            listener.added(worker)
        return worker

    def remove(self, worker: WorkerId) -> bool:
        """False where it was not in. Requests that it still serves end as they would have."""
        entry = self._entries.pop(worker, None)
        if entry is None:
            return False
        self._see(entry.worker)
        self._board.remove(worker)
        self._targets = None
        for listener in self._listeners:
            listener.removed(entry.worker)
        return True

    def learned(self, worker: WorkerId, learned: Learned) -> None:
        """What its engine said. Raises ConfigError where it can't join its pool; it is then unhealthy with
        that reason."""
        entry = self._entries.get(worker)
        if entry is None:
            return
        self._see(entry.worker)
        info = learned.info
        try:
            refuse_mixed_blocks(entry.worker, info.model, info.block_size, self.workers())
        except ConfigError as error:
            entry.worker.info = None
            self._targets = None
            self.set_health(worker, False, error.message)
            raise
        spec = entry.worker.spec
        spec = replace(
            spec,
            events=spec.events or learned.events,
            replay=spec.replay or (learned.replay if spec.events is None else None),
            topic=spec.topic or learned.topic or "",
        )
        if (spec, info) == (entry.worker.spec, entry.worker.info):
            return
        before, entry.worker.spec, entry.worker.info = entry.worker.info, spec, info
        self._see(entry.worker)
        self._apply_bounds(entry.worker)
        self._changed(entry.worker)
        self._unload(before, info)

    def set_health(self, worker: WorkerId, healthy: bool | None, reason: str = "") -> None:
        """None: nothing is known yet, and `reason` says what was met so far."""
        entry = self._entries.get(worker)
        if entry is not None and (healthy is not None or entry.healthy is None):
            entry.healthy, entry.health_reason = healthy, reason
            self._settle(entry)

    def drain(self, worker: WorkerId, reason: str = "drained by the operator") -> bool:
        """It finishes what it has and takes nothing new. False where it is not in."""
        return self._set_draining(worker, True, reason)

    def resume(self, worker: WorkerId) -> bool:
        return self._set_draining(worker, False)

    def withhold(self, worker: WorkerId, reason: str | None) -> bool:
        """Its source (a pod's readiness) says that it must get nothing new, and why; None lifts that. What
        it holds stays known. False where it is not in."""
        entry = self._entries.get(worker)
        if entry is None:
            return False
        entry.withheld = reason
        self._settle(entry)
        return True

    def set_weight(self, worker: WorkerId, weight: float) -> bool:
        """Raises ConfigError for a weight that no worker can have."""
        if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            raise ConfigError(
                f"weight {weight}: a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:,.0f} is wanted"
            )
        entry = self._entries.get(worker)
        if entry is None:
            return False
        entry.worker.spec = replace(entry.worker.spec, weight=weight)
        self._changed(entry.worker)
        return True

    def set_aliases(self, aliases: Mapping[str, str]) -> None:
        self._aliases = dict(aliases)
        self._targets = None

    def get(self, worker: WorkerId) -> Worker | None:
        entry = self._entries.get(worker)
        return entry.worker if entry is not None else None

    def workers(self) -> list[Worker]:
        """In the order in which they came."""
        return [entry.worker for entry in self._entries.values()]

    def resolve(self, name: str) -> Target | None:
        """What a request's model name stands for. No name is enough where there is but one model."""
        targets = self._targets if self._targets is not None else self.targets()
        if not name:
            models = {target.model for target in targets.values()} or set(self._away().values())
            if len(models) != 1:
                return None
            name = models.pop()
        return targets.get(name) or self._scaled_to_zero(name)

    def base_of(self, name: str) -> str:
        """Of what a request may name, or could; empty where nobody knows that."""
        target = self.resolve(name)
        return target.model if target is not None else ""

    def names(self) -> list[str]:
        """Whatever exists, in order: also what nobody serves just now."""
        return sorted({*self.targets(), *self._away()})

    def targets(self) -> Mapping[str, Target]:
        """All names that a request may give, but for those that were only seen."""
        if self._targets is None:
            self._targets = build_targets(self.workers(), self._aliases, self._declared)
        return self._targets

    def unit_of(self, model: str) -> int:
        """Tokens in one block key of this model's pool."""
        targets = self._targets if self._targets is not None else self.targets()
        target = targets.get(model)
        return target.unit if target is not None else BLOCK_SIZE

    def model_entries(self) -> list[dict[str, object]]:
        """`/v1/models`: the union over ready and draining workers, fields kept, first come first named;
        aliases as entries of their own with the target as parent."""
        entries: dict[object, dict[str, object]] = {}
        for worker in self.workers():
            if worker.info is not None and worker.state in (WorkerState.READY, WorkerState.DRAINING):
                for entry in worker.info.model_entries:
                    entries.setdefault(entry["id"], entry)
        for alias, name in self._aliases.items():
            if name in entries:
                entries.setdefault(alias, {**entries[name], "id": alias, "parent": name})
        return list(entries.values())

    def _scaled_to_zero(self, name: str) -> Target | None:
        base = self._away().get(name)
        return nobodys(name, base) if base is not None else None

    def _away(self) -> dict[str, str]:
        """Names that were seen, with their base models: whoever left may come back."""
        return self._seen.bases() if self._seen is not None else {}

    def _unload(self, before: EngineInfo | None, now: EngineInfo) -> None:
        """An engine that goes on serving its model without a name has unloaded that."""
        if self._seen is None or before is None or before.model != now.model:
            return
        gone = {*before.adapters, *before.served_names} - self.targets().keys()
        self._seen.unload(sorted(gone))

    def _see(self, worker: Worker) -> None:
        if self._seen is not None:
            self._seen.see((worker,))

    def _set_draining(self, worker: WorkerId, draining: bool, reason: str = "") -> bool:
        entry = self._entries.get(worker)
        if entry is None:
            return False
        entry.draining, entry.drain_reason = draining, reason
        self._settle(entry)
        return True

    def _settle(self, entry: _Entry) -> None:
        worker = entry.worker
        if entry.draining:
            state, reason = WorkerState.DRAINING, entry.drain_reason
        elif entry.withheld is not None:
            state, reason = WorkerState.UNHEALTHY, entry.withheld
        elif entry.healthy is None:
            state, reason = WorkerState.STARTING, entry.health_reason
        elif entry.healthy and worker.info is not None:
            state, reason = WorkerState.READY, ""
        else:
            state, reason = WorkerState.UNHEALTHY, entry.health_reason
        worker.fails_checks = (
            state is WorkerState.UNHEALTHY and entry.withheld is None and worker.info is not None
        )
        if (state, reason) == (worker.state, worker.reason):
            return
        if state is not worker.state:
            worker.since = self._clock()
        worker.state, worker.reason = state, reason
        self._changed(worker)

    def _apply_bounds(self, worker: Worker) -> None:
        load = self._board.add(worker.id)
        own = worker.spec.max_requests
        load.max_requests = self._max_requests if own is None else own
        capacity = worker.info.capacity_blocks if worker.info is not None else worker.spec.capacity_blocks
        load.capacity_blocks = capacity or 0
        size = worker.info.block_size if worker.info is not None else BLOCK_SIZE
        load.capacity_tokens = load.capacity_blocks * size

    def _changed(self, worker: Worker) -> None:
        self._targets = None
        for listener in self._listeners:
            listener.changed(worker)
