"""Where requests wait when every candidate is full: one fair queue a model, bounded in size and time.

One at a time gets its turn, is scored again, and passes the turn on when it leaves; one that finds no place
stands again where it stood. The queue is woken by a released lease, by a change in the fleet, and by a slow
tick for what nobody announces (an overload mark that ran out, a peer's load).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.errors import Overloaded
from gateway.routing.caller import Caller
from gateway.routing.fair_queue import FairQueue, Item


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_items: int = 256
    """Waiting requests a model; with 0 a full fleet refuses at once."""
    max_wait_s: float = 10.0
    tick_s: float = 0.25
    retry_after_s: float = 1.0
    """What a refused caller is told to wait."""


@dataclass(slots=True, eq=False)
class Place:
    """One request's place in its model's queue."""

    pool: str
    item: Item
    until: float
    turn: asyncio.Future[None]
    evicted: bool = False


@dataclass(slots=True)
class _Pool:
    queue: FairQueue
    places: dict[Item, Place] = field(default_factory=dict)
    trying: Place | None = None
    """Whose turn it is."""
    woken: bool = False
    """There was news while somebody had the turn."""
    ticker: asyncio.TimerHandle | None = None


class Admission:
    """Needs a running loop. All of its state belongs to waiting requests: it is empty when they are gone."""

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self._limits = limits or QueueLimits()
        self._pools: dict[str, _Pool] = {}
        self.waiting: Collection[str] = self._pools
        """The pools in which somebody waits: a newcomer must not overtake."""

    def depths(self) -> dict[str, int]:
        return {name: len(pool.places) for name, pool in self._pools.items()}

    def enter(self, name: str, caller: Caller, cost: float) -> Place:
        """Joins the queue; leave it with `leave` on every exit. Raises Overloaded where it is full and this
        caller's key holds most of it."""
        loop = asyncio.get_running_loop()
        pool = self._pools.setdefault(name, _Pool(FairQueue(self._limits.max_items)))
        item, leaving = pool.queue.push(
            caller.key, weight=caller.weight, priority=caller.priority, cost=max(1.0, cost)
        )
        if leaving is item:
            if not pool.places:
                del self._pools[name]
            raise self._overloaded(name, f"its queue of {self._limits.max_items} is full")
        if leaving is not None:
            self._evict(pool, leaving)
        wait = self._limits.max_wait_s
        if caller.deadline_s is not None:
            wait = min(wait, caller.deadline_s)
        place = pool.places[item] = Place(name, item, loop.time() + wait, loop.create_future())
        if pool.ticker is None:
            pool.ticker = loop.call_later(self._limits.tick_s, self._tick, name)
        return place

    async def turn(self, place: Place) -> None:
        """Returns when it is this request's turn to try. Raises Overloaded when its time is up, or when it
        had to make room for another key."""
        pool = self._pools[place.pool]
        if pool.trying is place:  # it tried and found no place
            pool.trying = None
            pool.queue.put_back(place.item)
            place.turn = asyncio.get_running_loop().create_future()
            if pool.woken:
                self.wake(place.pool)
        try:
            async with asyncio.timeout_at(place.until):
                await place.turn
        except TimeoutError:
            raise self._overloaded(place.pool, "no place came free in time") from None
        if place.evicted:
            raise self._overloaded(place.pool, "its queue is full")

    def leave(self, place: Place) -> None:
        """Served, refused or gone: whoever is next tries."""
        pool = self._pools.get(place.pool)
        if pool is None or pool.places.pop(place.item, None) is None:
            return
        pool.queue.remove(place.item)
        if pool.trying is place:
            pool.trying = None
        if pool.places:
            self.wake(place.pool)
            return
        if pool.ticker is not None:
            pool.ticker.cancel()
        del self._pools[place.pool]

    def wake(self, name: str) -> None:
        """There may be a place now."""
        pool = self._pools.get(name)
        if pool is None:
            return
        if pool.trying is not None:
            pool.woken = True
            return
        pool.woken = False
        item = pool.queue.pop()
        if item is None:
            return
        place = pool.trying = pool.places[item]
        if not place.turn.done():
            place.turn.set_result(None)

    def wake_all(self) -> None:
        for name in list(self._pools):
            self.wake(name)

    def _tick(self, name: str) -> None:
        pool = self._pools.get(name)
        if pool is None:
            return
        pool.ticker = asyncio.get_running_loop().call_later(self._limits.tick_s, self._tick, name)
        self.wake(name)

    def _evict(self, pool: _Pool, leaving: Item) -> None:
        place = pool.places.pop(leaving)
        place.evicted = True
        if not place.turn.done():
            place.turn.set_result(None)

    def _overloaded(self, name: str, why: str) -> Overloaded:
        return Overloaded(
            f"every worker of model {name!r} is full and {why}", retry_after=self._limits.retry_after_s
        )
