"""What an engine without events probably holds: the blocks placed on it last, up to its real capacity."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

_STALE = 4
"""So many entries for each tip does the queue hold at most."""


class CapacityLru:
    """Keys in the order in which a paged engine would evict them. `capacity` is in blocks of ours.

    An engine frees a finished prompt from its end, so that of one prompt the last block goes first, and none
    before those that follow it in another. What goes next is therefore always a *tip*, a key that none
    follows: the one whose latest prompt is the oldest. Then the key before it is a tip, unless others follow
    it. So of a prompt only what is new is written, and no key is moved for being used.

    A key should tell all that comes before it, as block keys do. Where two prompts have one in common and not
    what is before it (a hash can be made to), some go earlier than their turn.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.before: dict[int, int | None] = {}
        """Each key that is there, and the one before it. To be read only."""
        self._tips: dict[int, int] = {}
        """With the number of the latest prompt that came through."""
        self._forks: dict[int, int] = {}
        """Keys that several follow, and how many do. One that is neither here nor a tip has one behind it."""
        self._orphans: dict[int, int] = {}
        """Keys that are not there, and how many are that follow them."""
        self._ends: dict[int, tuple[int, int]] = {}
        """How many prompts end at a key, those that were turned away left out, and the number of the latest;
        where the rest of a prompt has gone, it ends before that."""
        self._queue: list[tuple[int, int]] = []
        """A heap of tips by number, and of what were."""
        self._number = 0

    def place(self, keys: Sequence[int], missing: Sequence[tuple[int, int]]) -> list[int]:
        """A prompt came; `missing` is what `missing` says of it. Returns the keys that it pushed out."""
        if not keys:
            return []
        self._number = number = self._number + 1
        for start, stop in missing:
            self._add(keys, start, stop)
        end = keys[-1]
        self._ends[end] = self._ends.get(end, (0, 0))[0] + 1, number
        if self._tips.get(end, number) != number:
            self._set_tip(end, number)
        return self._push_out(len(self.before) - self.capacity)

    def retract(self, keys: Sequence[int]) -> list[int]:
        """A prompt was turned away: returns those of its `keys` that no other prompt brought here."""
        key = next((key for key in reversed(keys) if key in self.before), None)
        if key is None or key not in self._ends:
            return []
        count, number = self._ends[key]
        self._ends[key] = max(0, count - 1), number
        gone: list[int] = []
        while key is not None and key in self._tips and not self._ends.get(key, (0, 0))[0]:
            gone.append(key)
            key = self._take_out(key)
        return gone

    def drop(self, keys: Sequence[int]) -> None:
        """These are not there, whatever follows them."""
        for key in reversed(keys):
            if key in self.before:
                self._take_out(key)

    def missing(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """From where to where they are not there: mostly once, a prompt goes on from what is."""
        there = self.before
        if not self._orphans:  # then what is there has all before it
            new = bisect_left(keys[::-1], True, key=there.__contains__)
            if not new:
                return []
            if there.keys().isdisjoint(keys[-new:]):
                return [(len(keys) - new, len(keys))]
        return runs_of_zeros(bytes(map(self.before.__contains__, keys)))

    def surely_to(self, key: int) -> bool:
        """`key` is there and all before it. False also where one would have to look for a hole."""
        return key in self.before and not self._orphans

    def _add(self, keys: Sequence[int], start: int, stop: int) -> None:
        """Those from `start` to `stop` are new, the one before them is not."""
        first = keys[start - 1] if start else None
        if first is not None and self._tips.pop(first, None) is None:
            self._forks[first] = self._forks.get(first, 1) + 1
        new = keys[start:stop]
        before, key = self.before, first
        for following in new:
            before[following], key = key, following
        last = new[-1]
        if not self._orphans:
            self._set_tip(last, self._number)
            return
        for key in new:
            behind = self._orphans.pop(key, 0) + (key != last)
            if behind > 1:
                self._forks[key] = behind
            elif not behind:
                self._set_tip(key, self._number)

    def _set_tip(self, key: int, number: int) -> None:
        self._tips[key] = number
        heappush(self._queue, (number, key))
        if len(self._queue) > _STALE * (len(self._tips) + 1):
            self._queue = [(number, key) for key, number in self._tips.items()]
            heapify(self._queue)

    def _push_out(self, count: int) -> list[int]:
        gone: list[int] = []
        before, forks, ends = self.before, self._forks, self._ends
        while len(gone) < count:
            if not self._queue:  # two prompts with one key and another before it, which a hash may do
                return gone + self._give_all_up()
            number, tip = heappop(self._queue)
            if self._tips.get(tip) != number:
                continue
            del self._tips[tip]
            ended = ends.pop(tip, (0, number))
            gone.append(tip)
            key = before.pop(tip)
            while len(gone) < count and key in before and key not in forks and key not in ends:
                gone.append(key)
                key = before.pop(key)
            self._shorten(key, ended)
        return gone

    def _take_out(self, key: int) -> int | None:
        """Returns the key before it, if it is there."""
        before = self.before.pop(key)
        behind = 0 if self._tips.pop(key, None) is not None else self._forks.pop(key, 1)
        if behind:
            self._orphans[key] = behind
        self._shorten(before, self._ends.pop(key, (0, 0)))
        return before if before in self.before else None

    def _shorten(self, key: int | None, ended: tuple[int, int]) -> None:
        """One that followed `key` has gone, and prompts that ended there end here now."""
        if key is None:
            return
        if key not in self.before:
            _one_less(self._orphans, key, last=1)
            return
        count, number = self._ends.get(key, (0, 0))
        count, number = self._ends[key] = count + ended[0], max(number, ended[1])
        if key in self._forks:
            _one_less(self._forks, key, last=2)
        else:
            self._set_tip(key, number)

    def _give_all_up(self) -> list[int]:
        gone = list(self.before)
        for kept in (self.before, self._tips, self._forks, self._orphans, self._ends):
            kept.clear()
        return gone

    def check_integrity(self) -> None:
        """Counts everything anew. Raises AssertionError where it differs."""
        behind: dict[int, int] = {}
        for before in self.before.values():
            if before is not None:
                behind[before] = behind.get(before, 0) + 1
        there = self.before.keys()
        ok = (
            self._tips.keys() == there - behind.keys()
            and self._forks == {key: n for key, n in behind.items() if n > 1 and key in there}
            and self._orphans == {key: n for key, n in behind.items() if key not in there}
            and self._tips.keys() <= self._ends.keys() <= there
            and {(number, key) for key, number in self._tips.items()} <= set(self._queue)
            and all(self._ends[key][1] == number for key, number in self._tips.items())
        )
        if not ok:
            raise AssertionError("what was guessed of an engine's cache is mixed up")


def runs_of_zeros(flags: bytes) -> list[tuple[int, int]]:
    """Where each begins and ends."""
    runs: list[tuple[int, int]] = []
    start = flags.find(0)
    while start >= 0:
        stop = flags.find(1, start)
        if stop < 0:
            return [*runs, (start, len(flags))]
        runs.append((start, stop))
        start = flags.find(0, stop)
    return runs


def _one_less(counts: dict[int, int], key: int, *, last: int) -> None:
    """Down to `last`, from where there is no count any more."""
    if counts[key] == last:
        del counts[key]
    else:
        counts[key] -= 1
