"""What a decision promises the index, and how it is taken back where nothing came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.fleet.worker import Worker
from gateway.index.base import IndexWriter
from gateway.routing.route import Outcome, Route
from gateway.routing.weighing import Reading
from gateway.types import BlockKey, WorkerId

Announce = Callable[[WorkerId, Sequence[BlockKey]], None]

MOST_TOGETHER = 262_144
"""Tokens of several prompts of one request: by the end of more the first are old news, and promising them is
one step, in which nobody else is served."""
TURNED_AWAY = (Outcome.CLIENT_ERROR, Outcome.BUSY)


class Promises:
    """`announce` tells other replicas of a placement; it returns at once. They are told of no retraction: a
    placement lives for seconds with them.

    The index is told when the event loop comes round, which is after the request has been sent: it need not
    wait for that. Whoever looks at the index for another decision calls `keep` before, where there are any.
    """

    def __init__(self, index: IndexWriter, announce: Announce | None = None) -> None:
        self._index = index
        self._announce = announce
        self.made: list[tuple[WorkerId, Sequence[BlockKey], int, float]] = []
        """Worker, keys, how many of them others know already, and when; of which nobody was told yet. To be
        read only."""

    def make(self, worker: Worker, reading: Reading, matched_tokens: int, now: float) -> list[list[BlockKey]]:
        """Placements here, and word of them to other replicas: what matched they know already; both a little
        later. Returns the keys placed, by prompt. A prompt that the worker has no room for promises nothing,
        nor do prompts of one request beyond what it has room for together."""
        known = matched_tokens // reading.target.unit if len(reading.prompts) == 1 else 0
        most = worker.info.most_tokens if worker.info is not None else None
        placed: list[list[BlockKey]] = []
        room = MOST_TOGETHER if most is None else min(most, MOST_TOGETHER)
        for prompt in reading.prompts:
            if most is not None and prompt.tokens > most:
                continue
            if placed and prompt.tokens > room:
                break
            placed.append(prompt.full)
            room -= prompt.tokens
        if placed and not self.made:
            asyncio.get_running_loop().call_soon(self.keep)
        for keys in placed:
            self.made.append((worker.id, keys, known, now))
        return placed

    def keep(self) -> None:
        """Tells the index, and other replicas, of all that was promised."""
        if not self.made:
            return
        made, self.made = self.made, []
        for worker, keys, known, now in made:
            self._index.place(worker, keys, now)
            if self._announce is not None:
                self._announce(worker, keys[known:])

    def settle(self, route: Route, outcome: Outcome, now: float) -> None:
        """At the end of a try that was not good: without a prefill, no block of the prompt will turn up. All
        that was promised is kept."""
        if route.lease.answered and outcome not in TURNED_AWAY:
            return
        if self._index.epoch(route.worker) != route.notes.epoch:
            return  # its promises are void, and those that were made since are others'
        for keys in route.notes.placed:
            self._index.retract(route.worker, keys, route.notes.placed_at, now)
