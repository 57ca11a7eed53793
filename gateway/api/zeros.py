"""Counters of what may never happen are there, at zero, from when their labels are known.

To Prometheus a counter that is born with its first failure has not increased: no rate sees it, and no alert.
What followers, tasks and keys count is begun by those who hear of them (gateway.api.recorder).
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.api.door import Door
from gateway.errors import STORE_FAILURES, InvalidRequest, ModelNotFound, Overloaded, Unavailable
from gateway.fleet.worker import Worker
from gateway.index.replication.mirror import LOADS
from gateway.index.replication.writer import REFILLS
from gateway.metrics import Metrics
from gateway.prompt.base import UNTOKENISED, Endpoint
from gateway.routing.route import Outcome

RETRIED = (Outcome.BUSY, Outcome.UPSTREAM_ERROR, Outcome.TIMEOUT)
"""Ends of a try that leave the request to another worker."""
REFUSALS = (InvalidRequest, ModelNotFound, Unavailable, Overloaded)
"""What a router raises."""


class Zeros:
    """A fleet listener. What clients ask for beside chats, and adapters, count from their first request on:
    most fleets have many that nobody asks for."""

    def __init__(self, metrics: Metrics, policy_of: Callable[[str], str], *, shared: bool) -> None:
        """`policy_of` names a model's policy; `shared` where replicas share workers through Redis."""
        self._metrics = metrics
        self._policy_of = policy_of
        self._shared = shared
        metrics.expect(Endpoint.CHAT.value)
        for refusal in REFUSALS:
            metrics.refusals.labels(refusal.__name__)
        for kind in STORE_FAILURES if shared else ():
            metrics.redis_failures.labels(kind)

    def door(self, door: Door) -> None:
        """This one stands from now on."""
        for name in door.names:
            self._metrics.door_stripped.labels(name)

    def added(self, worker: Worker) -> None:
        metrics, me = self._metrics, worker.id
        for outcome in RETRIED:
            metrics.retries.labels(me, outcome.value)
        for direction in ("short", "extra"):
            metrics.promise_drift_tokens.labels(me, direction)
        self.changed(worker)

    def changed(self, worker: Worker) -> None:
        if worker.info is not None:
            self._of_model(worker.info.model, worker.id)
            if self._shared and worker.spec.events is not None:
                self._of_share(worker.id)

    def removed(self, worker: Worker) -> None:
        """Its series go later (gateway.api.departed)."""

    def _of_model(self, model: str, worker: str) -> None:
        metrics = self._metrics
        metrics.unrouted(model)
        metrics.per_worker(model, worker)
        for counter in (metrics.sliced, metrics.slices):
            counter.labels(model, worker)
        metrics.decision(model, self._policy_of(model), "cold")
        for kind in UNTOKENISED:
            metrics.not_tokenised.labels(model, kind)
        for result in ("match", "mismatch"):
            metrics.tokenizer_checks.labels(model, result)

    def _of_share(self, worker: str) -> None:
        metrics = self._metrics
        for reason in REFILLS:
            metrics.redis_refills.labels(worker, reason)
        for load in LOADS:
            metrics.mirror_loads.labels(worker, load)
        metrics.takeovers.labels(worker)
        metrics.fenced.labels(worker)
