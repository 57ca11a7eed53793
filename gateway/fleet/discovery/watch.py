"""Lists, then watches, for as long as it is asked to: the loop of every Kubernetes client that keeps a list.

list → (version) → watch from there → changes … A watch that ends is taken up where it stopped; a version that
is history by now (410 Gone) means a new list; an API server that is away costs nobody: the last list stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import DiscoveryError
from gateway.fleet.discovery.objects import JsonObject
from gateway.fleet.source import Source

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Change:
    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK, as the API server calls them; BEGUN where it took the watch."""
    object: JsonObject


class Cluster(Protocol):
    async def list(self) -> tuple[list[JsonObject], str]:
        """All objects and the version they stand at. Raises DiscoveryError."""
        ...

    def watch(self, version: str) -> AsyncGenerator[Change]:
        """What changes from there, until the server ends the stream. Raises DiscoveryError."""
        ...


class Store(Protocol):
    """Told of objects in the order in which they changed."""

    def replace(self, objects: list[JsonObject]) -> None: ...

    def put(self, item: JsonObject) -> None: ...

    def drop(self, item: JsonObject) -> None: ...


class Watcher:
    def __init__(
        self, cluster: Cluster, store: Store, source: Source, *, random: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._source = source
        self._random = random
        self._failures = 0
        self._version: str | None = None
        """Where the next watch begins; None: with a new list."""

    async def run(self) -> None:
        """Until cancelled. Begins with a new list, also where it failed before and is begun again."""
        self._version = None
        while True:
            try:
                await self._once()
            except DiscoveryError as error:
                self._failed(error)
            # also where nothing failed: a server that ends every stream at once must not be hammered
            await asyncio.sleep(self._wait())

    async def _once(self) -> None:
        version = self._version
        if version is None:
            objects, version = await self._cluster.list()
            self._store.replace(objects)
            self._source.listed()
            self._succeeded(version)
        self._source.watched()
        async with aclosing(self._cluster.watch(version)) as changes:
            async for change in changes:
                self._apply(change)
        # it ended in peace: had something changed, it would have said so
        self._succeeded(self._version)

    def _apply(self, change: Change) -> None:
        if change.kind == "BEGUN":
            # a server that has nothing to say, and sends no bookmarks either, answers with this alone
            self._source.heard()
            return
        if change.kind == "DELETED":
            self._store.drop(change.object)
        elif change.kind in ("ADDED", "MODIFIED"):
            self._store.put(change.object)
        version = (change.object.get("metadata") or {}).get("resourceVersion")
        self._succeeded(str(version) if version else self._version)

    def _succeeded(self, version: str | None) -> None:
        if self._failures:
            log.info("the list of workers is current again")
        self._source.heard()
        self._version, self._failures = version, 0

    def _failed(self, error: DiscoveryError) -> None:
        if error.expired:
            self._version = None
        elif not self._failures:
            log.warning("workers can't be listed; the last list stands", extra={"reason": error.message})
        self._failures += 1
        self._source.failed(error.message, expired=error.expired)

    def _wait(self) -> float:
        """Doubles up to its longest, spread over ±50 %, so that replicas don't come back as one."""
        longest: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 10))
        return longest * (0.5 + self._random())
