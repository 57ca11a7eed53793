"""What replicas share of the index, seen from outside: metrics, figures for people, verify and clear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from gateway.errors import NotFound, StoreError
from gateway.events.share import Role
from gateway.events.shared import SharedFollower
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.mirror import MirrorState
from gateway.index.replication.verify import PATIENCE_S, Audit, Deadline, audit
from gateway.metrics import Gauge, Metrics
from gateway.store.connection import Store
from gateway.types import WorkerId

SharedFollowers = Callable[[], Mapping[WorkerId, SharedFollower]]


class ShareMetrics:
    """What store, writers and mirrors tell, as metrics (a StoreObserver and a ShareObserver)."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def command(self, name: str, seconds: float) -> None:
        if name != "XREAD":  # it waits by design
            self._metrics.redis_seconds.labels(name).observe(seconds)

    def failed(self, kind: str) -> None:
        self._metrics.redis_failures.labels(kind).inc()

    def loaded(self, worker: WorkerId, reason: str, blocks: int, seconds: float) -> None:
        self._metrics.mirror_loads.labels(worker, reason).inc()

    def refilled(self, worker: WorkerId, reason: str) -> None:
        self._metrics.redis_refills.labels(worker, reason).inc()

    def took_over(self, worker: WorkerId) -> None:
        self._metrics.takeovers.labels(worker).inc()

    def fenced(self, worker: WorkerId) -> None:
        self._metrics.fenced.labels(worker).inc()


class Knowledge:
    """Without a `store` this replica is alone: there is only its own index."""

    def __init__(self, index: PrefixIndex, store: Store | None, followers: SharedFollowers) -> None:
        self._index = index
        self._store = store
        self._followers = followers

    def unready(self) -> str | None:
        """Why it should get no traffic yet: it knows too little. Redis away is no reason."""
        if self._store is None or not self._store.status.up:
            return None
        loading = sum(follower.loading for follower in self._followers().values())
        return f"loading the blocks of {loading} workers from Redis" if loading else None

    def stats(self) -> dict[str, Any]:
        store = None
        if self._store is not None:
            store = {"url": str(self._store.url), **asdict(self._store.status)}
        return {
            "index": asdict(self._index.stats()),
            "redis": store,
            "workers": [asdict(follower.share_status()) for follower in self._followers().values()],
        }

    async def verify(self) -> list[Audit]:
        """Raises StoreError where Redis is away."""
        audits = []
        patience = Deadline(PATIENCE_S)
        with self._naming_redis():
            for follower in list(self._followers().values()):
                audits.append(await audit(follower.shelf, follower.stand, self._index, patience))
        return audits

    async def clear(self, worker: WorkerId) -> None:
        """All that is known of it is void, for every replica. Raises NotFound, StoreError."""
        if worker not in self._index.stats().held:
            raise NotFound(f"no worker {worker!r}; GET /admin/workers lists them", param="worker")
        follower = self._followers().get(worker)
        if follower is not None:
            with self._naming_redis():
                await follower.void()
        self._index.clear(worker)

    @contextmanager
    def _naming_redis(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            url = "" if self._store is None else f" at {self._store.url}"
            raise StoreError(f"Redis{url} failed: {error.message}", kind=error.kind) from error

    def gauges(self) -> Iterable[Gauge]:
        if self._store is None:
            return
        rows = [follower.share_status() for follower in self._followers().values()]
        yield Gauge(
            "gateway_redis_up",
            "1 while Redis answers and takes writes, all of it that is used.",
            (),
            [((), float(self._store.status.up))],
        )
        yield Gauge(
            "gateway_index_writer",
            "1 where this replica writes the worker's blocks to Redis; one replica of the fleet does.",
            ("worker",),
            [((row.worker,), float(row.leased)) for row in rows],
        )
        yield Gauge(
            "gateway_redis_pending_entries",
            "Changes that Redis does not have yet.",
            ("worker",),
            [((row.worker,), row.pending) for row in rows],
        )
        yield Gauge(
            "gateway_mirror_current",
            "1 where this replica knows what the worker's writer knows; "
            "0: loading, refilling, empty or stale.",
            ("worker",),
            [
                (
                    (row.worker,),
                    float(row.role != Role.MIRROR.value or row.mirror == MirrorState.FOLLOWING.value),
                )
                for row in rows
            ],
        )
