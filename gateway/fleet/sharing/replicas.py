"""All that one replica shares over Redis, started and ended together."""

from __future__ import annotations

import time
from collections.abc import Iterable
from random import Random

from gateway.fleet.load import LoadBoard
from gateway.fleet.models_seen import ModelsSeen
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.bus import RedisBus
from gateway.fleet.sharing.discovery import RedisDiscovery
from gateway.fleet.sharing.models import SharedModels
from gateway.fleet.sharing.peers import Peers, Place
from gateway.fleet.sharing.registrations import Registrations
from gateway.fleet.sharing.sharing import LoadSharing
from gateway.lasting import Lasting
from gateway.metrics import Gauge
from gateway.store.connection import Store
from gateway.store.eviction import EvictionWatch
from gateway.types import Clock


class Replicas:
    """`me` is this replica's name, another one in each life of it. `place` takes peers' placements into the
    index. With `discover`, workers that registered in Redis join the registry."""

    def __init__(
        self,
        me: str,
        store: Store,
        board: LoadBoard,
        registry: Registry,
        seen: ModelsSeen,
        place: Place,
        *,
        clock: Clock,
        random: Random,
        discover: bool,
        lasting: Lasting,
    ) -> None:
        peers = Peers(me, board, place)
        self.sharing = LoadSharing(
            me, RedisBus(store), board, peers, clock=clock, random=random.random, lasting=lasting
        )
        self.eviction = EvictionWatch(store, random=random.random, lasting=lasting)
        self._store = store
        self.models = SharedModels(
            store, seen, registry, wall=time.time, random=random.random, lasting=lasting
        )
        self.discovery = (
            RedisDiscovery(
                Registrations(store, time.time),
                registry,
                clock=clock,
                random=random.random,
                lasting=lasting,
            )
            if discover
            else None
        )

    def start(self) -> None:
        self.sharing.start()
        self.models.start()
        self.eviction.start()
        if self.discovery is not None:
            self.discovery.start()

    async def close(self) -> None:
        if self.discovery is not None:
            await self.discovery.close()
        await self.eviction.close()
        await self.models.close()
        await self.sharing.close()

    def gauges(self) -> Iterable[Gauge]:
        status = self.sharing.status()

        def gauge(name: str, text: str, value: float) -> Gauge:
            return Gauge(name, text, (), [((), value)])

        yield gauge(
            "gateway_redis_evicts",
            "1 where Redis' maxmemory-policy throws away what it was given.",
            float(bool(self._store.evicts)),
        )
        yield gauge("gateway_peers", "Other replicas that are heard.", len(status.peers))
        yield gauge(
            "gateway_sharing_up",
            "1 where this replica is heard by itself through Redis: load and placements are shared.",
            float(status.speaking and status.listening),
        )
        yield Gauge(
            "gateway_sharing_placements_dropped",
            "Placements that peers were never told.",
            (),
            [((), status.placements_dropped)],
            counts=True,
        )
