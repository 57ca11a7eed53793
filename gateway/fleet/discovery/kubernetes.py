"""The fleet as Kubernetes lists it, from `start` to `close`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.fleet.discovery.cluster import ApiServer
from gateway.fleet.discovery.members import Member, Members
from gateway.fleet.discovery.objects import JsonObject, Reader
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.discovery.watch import Watcher
from gateway.fleet.source import Source
from gateway.lasting import Lasting
from gateway.types import Clock

log = logging.getLogger(__name__)


class Objects:
    """A `Store`: keeps what each object stands for, not the object."""

    def __init__(self, members: Members, read: Reader, rules: PortRules) -> None:
        self._members = members
        self._read = read
        self._rules = rules
        self._by_object: dict[str, list[Member]] = {}
        self._faults: dict[str, list[str]] = {}

    def unusable(self) -> int:
        return sum(map(bool, self._faults.values())) + self._members.refused

    def nobody(self) -> str | None:
        if not self._by_object:
            return "Kubernetes: nothing in the namespace matches the selector"
        if any(self._by_object.values()):
            return None
        faults = [f"{key}: {'; '.join(found)}" for key, found in sorted(self._faults.items()) if found]
        return f"Kubernetes lists {len(self._by_object)} and none can be used" + "".join(
            f"; {fault}" for fault in faults[:1]
        )

    def replace(self, objects: list[JsonObject]) -> None:
        self._by_object = {_key(item): self._understand(item) for item in objects}
        self._faults = {key: self._faults[key] for key in self._by_object if key in self._faults}
        self._settle()

    def put(self, item: JsonObject) -> None:
        self._by_object[_key(item)] = self._understand(item)
        self._settle()

    def drop(self, item: JsonObject) -> None:
        self._by_object.pop(_key(item), None)
        self._faults.pop(_key(item), None)
        self._settle()

    def _understand(self, item: JsonObject) -> list[Member]:
        key, read = _key(item), self._read(item, self._rules)
        if read.faults and self._faults.get(key) != read.faults:
            log.warning("an object can't be used", extra={"object": key, "reason": "; ".join(read.faults)})
        self._faults[key] = read.faults
        return read.members

    def _settle(self) -> None:
        self._members.replace(member for members in self._by_object.values() for member in members)


def _key(item: JsonObject) -> str:
    meta = item.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"


class KubernetesDiscovery:
    def __init__(
        self,
        cluster: ApiServer,
        members: Members,
        read: Reader,
        *,
        rules: PortRules,
        clock: Clock,
        random: Callable[[], float],
        lasting: Lasting | None = None,
    ) -> None:
        self._cluster = cluster
        objects = Objects(members, read, rules)
        self.source = Source(
            "kubernetes",
            clock,
            joined=lambda: len(members),
            unusable=objects.unusable,
            nobody=objects.nobody,
        )
        self._watcher = Watcher(cluster, objects, self.source, random=random)
        self._lasting = lasting or Lasting()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._lasting.begin(
            self._watcher.run,
            "discovery in Kubernetes",
            lost="the last list stands",
            failed=self.source.broke,
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._cluster.close()
