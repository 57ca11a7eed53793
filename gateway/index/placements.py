"""What routing decisions promise: blocks that a worker will hold in a moment.

They live beside what is held, for a short time, so that a burst of siblings meets on one worker before the
engine's first event arrives, and so that a promise that never came true is forgotten by itself.

Promised is only what a worker does not hold, and a key tells all that comes before it. So who knows how deep
a worker holds a prompt asks about the next key alone, whether a promise begins there. A worker's promises are
trees of runs of keys, found by their first keys; prompts that begin alike share what they have in common. A
promise costs a look or two, however long its prompt is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

DEFAULT_TTL = 5.0
DEFAULT_MAX_KEYS = 1_000_000


class _Run:
    """Keys that follow one another and are promised together."""

    __slots__ = ("before", "behind", "gone", "is_first", "keys", "promises")

    def __init__(self, keys: list[int], before: _Run | None) -> None:
        self.keys = keys
        self.before = before
        """The run through which all its promises go, too, gone or not."""
        self.is_first = before is None
        """What it follows is not promised: it is held, as a rule."""
        self.behind: dict[int, _Run] = {}
        """The runs that follow, by their first keys."""
        self.promises = 0
        """How many promises go through all of it."""
        self.gone = False
        """It came true or was refuted: nobody finds it any more."""

    @property
    def siblings(self) -> dict[int, _Run]:
        """Itself and the others that follow the same; not for first ones."""
        return self.before.behind if self.before is not None else {}


class _Promise:
    __slots__ = ("bit", "ends", "name", "until")

    def __init__(self, bit: int, name: int, until: float) -> None:
        self.bit = bit
        self.name = name
        """The last key of its prompt."""
        self.until = until
        self.ends: list[_Run] = []
        """The last run of each piece that was not held; empty once it was retracted."""


class Placements:
    """Promised keys by worker bit. `masks` is read by the match: key → bits of the workers of which a promise
    begins there.

    All live `ttl` seconds from their latest placement. Beyond `max_keys` promised keys the oldest go early.
    """

    def __init__(self, ttl: float = DEFAULT_TTL, max_keys: int = DEFAULT_MAX_KEYS) -> None:
        self.masks: dict[int, int] = {}
        self._ttl = ttl
        self._max_keys = max_keys
        self._first: dict[int, dict[int, list[_Run]]] = {}
        """By bit and first key, the first runs: one, or several that began at different keys."""
        self._queue: deque[_Promise] = deque()
        self._named: dict[tuple[int, int, float], list[_Promise]] = {}
        self._size = 0
        self._all: dict[int, set[int]] = {}
        """By bit, all keys that are promised, and maybe more; only where somebody asked."""

    def __len__(self) -> int:
        """Pairs of worker and key that are promised now."""
        return self._size

    def place(self, bit: int, name: int, pieces: Sequence[list[int]], now: float) -> None:
        """A decision promises `pieces` of a prompt whose last key is `name`: each of keys that follow one
        another and that the worker does not hold."""
        if not pieces:
            return
        promise = _Promise(bit, name, now + self._ttl)
        promise.ends = [self._enter(bit, keys) for keys in pieces]
        self._queue.append(promise)
        self._named.setdefault((bit, name, promise.until), []).append(promise)
        self._all.pop(bit, None)
        while self._size > self._max_keys:
            self._end(self._queue.popleft())

    def reach(self, bit: int, keys: Sequence[int], depth: int) -> int:
        """How deep `keys` are promised from `depth` on, before which all are held."""
        first, keys = self._first.get(bit), _listed(keys)
        end, todo = depth, keys[depth : depth + 1] if first else []
        while first and todo:
            key = todo.pop()
            start = keys.index(key, depth)
            for run in first.get(key, ()):
                far = self._along(run, keys, start)
                if far > end:  # others that begin on the way may lead farther
                    todo += first.keys() & keys[end + 1 : far + 1]
                    end = far
        return end

    def expire(self, now: float) -> None:
        while self._queue and self._queue[0].until <= now:
            self._end(self._queue.popleft())

    def came_true(self, bit: int, keys: Sequence[int]) -> None:
        """The worker holds `keys`, which follow one another, and what is before them."""
        first = self._first.get(bit)
        if not first or first.keys().isdisjoint(keys):
            return
        keys = _listed(keys)
        for place, key in enumerate(keys):
            if key in first:
                runs = first.pop(key)
                self._unmask(bit, key)
                for run in runs:
                    self._shorten(bit, run, _common(run.keys, keys, place))

    def drop(self, bit: int, keys: Sequence[int]) -> None:
        """None of `keys` is promised any more, wherever in a promise it is. For what is not known to follow
        what is held; `came_true` is much cheaper."""
        if not self._first.get(bit):
            self._all.pop(bit, None)
            return
        known = self._all.get(bit)
        if known is None:
            known = self._all[bit] = {key for run in self._runs(bit) for key in run.keys}
        if known.isdisjoint(keys):
            return
        dropped = known.intersection(keys)
        for run in list(self._runs(bit)):
            while not run.gone and not dropped.isdisjoint(run.keys):
                at = next(place for place, key in enumerate(run.keys) if key in dropped)
                if at:
                    self._split(bit, run, at)
                self._unhang(bit, run)
                run.is_first = True
                kept = (place for place, key in enumerate(run.keys) if key not in dropped)
                self._shorten(bit, run, next(kept, len(run.keys)))

    def refute(self, bit: int, keys: Sequence[int], delivered: int) -> None:
        """Of `keys`, the beginning of a prompt, the worker has no more than `delivered`."""
        first = self._first.get(bit)
        if not first or delivered >= len(keys):
            return
        keys = _listed(keys)
        for key in first.keys() & keys:
            for begin in list(first[key]):
                place, run = keys.index(key), begin
                while (shared := _common(run.keys, keys, place)) == len(run.keys) <= delivered - place:
                    place += shared
                    if keys[place] not in run.behind:
                        break
                    run = run.behind[keys[place]]
                else:
                    if place + shared > delivered:
                        self._cut(bit, run, max(0, delivered - place))

    def retract(self, bit: int, keys: Sequence[int], placed_at: float, now: float) -> None:
        """One promise less, the one made at `placed_at`; what others promised too stays until its time."""
        until = placed_at + self._ttl
        named = self._named.get((bit, keys[-1], until)) if keys else None
        promise = next((made for made in named or () if made.ends), None)
        if promise is not None and until > now:
            self._let_go(promise)

    def clear(self, bit: int) -> None:
        for runs in list(self._first.get(bit, {}).values()):
            for run in list(runs):
                self._cut(bit, run, 0)
        self._first.pop(bit, None)
        self._all.pop(bit, None)

    def _enter(self, bit: int, keys: list[int]) -> _Run:
        """The run at whose end `keys` end, all on the way counted."""
        firsts = self._first.get(bit, {}).get(keys[0], ())
        place, before, run = 0, None, next(filter(_alone, firsts), None)
        while run is not None:
            shared = _common(run.keys, keys, place)
            if shared < len(run.keys):
                run = self._split(bit, run, shared)
            run.promises += 1
            place += shared
            if place == len(keys):
                return run
            before, run = run, run.behind.get(keys[place])
        run = _Run(keys[place:] if place else keys, before)
        run.promises = 1
        self._size += len(run.keys)
        self._hang(bit, run)
        return run

    def _hang(self, bit: int, run: _Run) -> None:
        """Where it is found: behind what is before it, or as a first one."""
        key = run.keys[0]
        if not run.is_first:
            run.siblings[key] = run
            return
        self._first.setdefault(bit, {}).setdefault(key, []).append(run)
        self.masks[key] = self.masks.get(key, 0) | bit

    def _unhang(self, bit: int, run: _Run) -> None:
        key = run.keys[0]
        if not run.is_first:
            del run.siblings[key]
            return
        first = self._first[bit]
        first[key].remove(run)
        if not first[key]:
            del first[key]
            self._unmask(bit, key)

    def _unmask(self, bit: int, key: int) -> None:
        mask = self.masks[key] ^ bit
        if mask:
            self.masks[key] = mask
        else:
            del self.masks[key]

    def _split(self, bit: int, run: _Run, at: int) -> _Run:
        """The first `at` keys of it, as a run of their own. Promises that end with it still do."""
        self._unhang(bit, run)
        front = _Run(run.keys[:at], run.before)
        front.is_first, front.promises = run.is_first, run.promises
        self._hang(bit, front)
        run.keys, run.before, run.is_first = run.keys[at:], front, False
        self._hang(bit, run)
        return front

    def _shorten(self, bit: int, run: _Run, count: int) -> None:
        """The first `count` keys of a first run, which was taken out, are promised no more."""
        self._size -= count
        if count < len(run.keys):
            run.keys = run.keys[count:]
            self._hang(bit, run)
            return
        run.gone = True
        for behind in run.behind.values():
            behind.is_first = True
            self._hang(bit, behind)
        run.behind = {}

    def _cut(self, bit: int, run: _Run, at: int) -> None:
        """Nothing of it is promised from its key `at` on, nor what is behind it."""
        if at:
            self._split(bit, run, at)
        self._unhang(bit, run)
        for lost in list(_subtree(run)):
            lost.gone = True
            lost.behind = {}
            self._size -= len(lost.keys)

    def _end(self, promise: _Promise) -> None:
        """It has left the queue."""
        self._let_go(promise)
        name = promise.bit, promise.name, promise.until
        named = self._named[name]
        named.remove(promise)
        if not named:
            del self._named[name]

    def _let_go(self, promise: _Promise) -> None:
        for end in promise.ends:
            run: _Run | None = end
            while run is not None:
                run.promises -= 1
                if not run.promises and not run.gone:
                    self._unhang(promise.bit, run)
                    run.gone = True
                    self._size -= len(run.keys)
                run = run.before
        promise.ends = []

    def _along(self, run: _Run, keys: list[int], place: int) -> int:
        """How deep a run and those behind it follow `keys`, from `place` on."""
        while True:
            shared = _common(run.keys, keys, place)
            place += shared
            if shared < len(run.keys) or place == len(keys) or keys[place] not in run.behind:
                return place
            run = run.behind[keys[place]]

    def _runs(self, bit: int) -> Iterator[_Run]:
        for run in chain.from_iterable(self._first.get(bit, {}).values()):
            yield from _subtree(run)

    def check_integrity(self) -> None:
        """Raises AssertionError where the masks differ from the promises behind them, or one never ends."""
        for _ in self.inspect():
            pass

    def inspect(self) -> Iterator[None]:
        """The same, one worker's promises at a time; in between there may be others."""
        for bit in list(self._first):
            if not self._in_order(bit):
                raise AssertionError("placements differ from their masks or would never expire")
            yield
        if sum(mask.bit_count() for mask in self.masks.values()) != sum(map(len, self._first.values())):
            raise AssertionError("more masks than placements")
        yield
        if sum(len(run.keys) for bit in self._first for run in self._runs(bit)) != self._size:
            raise AssertionError("placements are miscounted")
        yield
        if sum(map(len, self._named.values())) != len(self._queue):
            raise AssertionError("placements that nobody could take back, or who would never expire")

    def _in_order(self, bit: int) -> bool:
        through: dict[_Run, int] = {}
        for promise in self._queue:
            for end in promise.ends if promise.bit == bit else ():
                run: _Run | None = end
                while run is not None:
                    through[run] = through.get(run, 0) + 1
                    run = run.before
        firsts = self._first.get(bit, {})
        return all(
            runs and self.masks.get(key, 0) & bit and all(run.is_first and run.keys[0] == key for run in runs)
            for key, runs in firsts.items()
        ) and all(
            run.keys
            and not run.gone
            and run.promises == through.get(run, 0) > 0
            and all(
                behind.before is run and not behind.is_first and behind.keys[0] == key
                for key, behind in run.behind.items()
            )
            for run in self._runs(bit)
        )


def _alone(run: _Run) -> bool:
    """Nothing is promised that was promised before it: who ends with it counts nowhere else."""
    while run.before is not None:
        run = run.before
        if not run.gone:
            return False
    return True


def _listed(keys: Sequence[int]) -> list[int]:
    """Slices of lists are compared with slices of lists."""
    return keys if isinstance(keys, list) else list(keys)


def _common(run: list[int], keys: list[int], place: int) -> int:
    """How many leading keys of `run` those from `place` on are."""
    most = min(len(run), len(keys) - place)
    if (run if most == len(run) else run[:most]) == keys[place : place + most]:
        return most
    same, differ = 0, most
    while differ - same > 1:
        middle = (same + differ) // 2
        if run[same:middle] == keys[place + same : place + middle]:
            same = middle
        else:
            differ = middle
    return same


def _subtree(run: _Run) -> Iterator[_Run]:
    todo = [run]
    while todo:
        run = todo.pop()
        todo += run.behind.values()
        yield run
