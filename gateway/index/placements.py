"""What routing decisions promise: blocks that a worker will hold in a moment.

They live in a side map with a short life, so that a burst of siblings meets on one worker before the engine's
first event arrives, and so that a promise that never came true is forgotten by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

DEFAULT_TTL = 5.0
DEFAULT_MAX_KEYS = 1_000_000


class Placements:
    """Promised keys by worker bit. `masks` is read by the match: key → bits of the workers it is promised on.

    All live `ttl` seconds from their latest placement. Beyond `max_keys` promised keys the oldest go early.
    """

    def __init__(self, ttl: float = DEFAULT_TTL, max_keys: int = DEFAULT_MAX_KEYS) -> None:
        self.masks: dict[int, int] = {}
        self._ttl = ttl
        self._max_keys = max_keys
        self._until: dict[int, dict[int, float]] = {}
        self._again: dict[int, dict[int, int]] = {}
        """By bit, keys that several decisions promise: how many of them beside the first."""
        self._queue: deque[tuple[float, int, Sequence[int]]] = deque()
        self._queued = 0

    def __len__(self) -> int:
        """Pairs of worker and key that are promised now."""
        return sum(map(len, self._until.values()))

    def place(self, bit: int, keys: Sequence[int], now: float) -> None:
        if not keys:
            return
        masks, until, expiry = self.masks, self._until.setdefault(bit, {}), now + self._ttl
        if not until.keys().isdisjoint(keys):
            again = self._again.setdefault(bit, {})
            for key in until.keys() & keys:
                again[key] = again.get(key, 0) + 1
        if masks.keys().isdisjoint(keys):
            for key in keys:
                until[key] = expiry
                masks[key] = bit
        else:
            for key in keys:
                until[key] = expiry
                masks[key] = masks.get(key, 0) | bit
        self._queue.append((expiry, bit, keys))
        self._queued += len(keys)
        while self._queued > self._max_keys:
            self._expire_oldest(self._queue[0][0])

    def expire(self, now: float) -> None:
        while self._queue and self._queue[0][0] <= now:
            self._expire_oldest(now)

    def drop(self, bit: int, keys: Sequence[int]) -> None:
        """These came true, or were refuted."""
        until = self._until.get(bit)
        if until and not until.keys().isdisjoint(keys):
            self._forget(bit, until, keys)

    def retract(self, bit: int, keys: Iterable[int], placed_at: float, now: float) -> None:
        """One promise less, the one made at `placed_at`; what others promised too stays until its time."""
        until, again = self._until.get(bit), self._again.get(bit, {})
        if not until or placed_at + self._ttl <= now:  # it is over: what stands now is others'
            return
        only: list[int] = []
        for key in keys:
            others = again.pop(key, 0)
            if others > 1:
                again[key] = others - 1
            elif not others and key in until:
                only.append(key)
        self._forget(bit, until, only)

    def clear(self, bit: int) -> None:
        until = self._until.pop(bit, {})
        self._forget(bit, until, list(until))
        self._again.pop(bit, None)

    def _expire_oldest(self, now: float) -> None:
        _, bit, keys = self._queue.popleft()
        self._queued -= len(keys)
        until = self._until.get(bit)
        if until and not until.keys().isdisjoint(keys):  # else all of them came true
            # those that were placed again since have another time
            self._forget(bit, until, [key for key in keys if until.get(key, now + 1) <= now])

    def _forget(self, bit: int, until: dict[int, float], keys: Iterable[int]) -> None:
        """Those of them that are promised."""
        again, masks = self._again.get(bit), self.masks
        for key in keys:
            if until.pop(key, None) is None:
                continue
            if again:
                again.pop(key, None)
            mask = masks[key]
            if mask == bit:
                del masks[key]
            else:
                masks[key] = mask ^ bit

    def check_integrity(self) -> None:
        """Raises AssertionError where the masks differ from the promises behind them."""
        masks: dict[int, int] = {}
        for bit, until in self._until.items():
            for key in until:
                masks[key] = masks.get(key, 0) | bit
        queued = {(bit, key) for _, bit, keys in self._queue for key in keys}
        promised = {(bit, key) for bit, until in self._until.items() for key in until}
        again = {(bit, key) for bit, counts in self._again.items() for key in counts}
        if masks != self.masks or not again <= promised <= queued:
            raise AssertionError("placements differ from their masks or would never expire")
