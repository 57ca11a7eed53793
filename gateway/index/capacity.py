"""What an engine without events probably holds: the blocks placed on it last, up to its real capacity."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from gateway.index.holding import Gone, Holding

_STALE = 4
"""So many entries for each tip does the queue hold at most."""
_NONE = 0, 0


class CapacityLru:
    """The order in which a paged engine would evict what `holding` says it holds. `capacity` is in blocks of
    ours.

    An engine frees a finished prompt from its end, so that of one prompt the last block goes first, and none
    before those that follow it in another. What goes next is therefore always a *tip*, a key that none
    follows: the one whose latest prompt is the oldest. Then the key before it is a tip, unless others follow
    it. So a prompt is noted at its last key only, and nothing is moved for being used.

    A key should tell all that comes before it, as block keys do. Where two prompts have one in common and not
    what is before it (a hash can be made to), some go earlier than their turn, and *strays*, tips at which no
    prompt ever ended, go last.
    """

    def __init__(self, capacity: int, holding: Holding) -> None:
        self.capacity = capacity
        self._holding = holding
        self._ends: dict[int, tuple[int, int]] = {}
        """How many prompts end at a key, those that were turned away left out, and the number of the latest;
        where the rest of a prompt has gone, it ends before that."""
        self._queue: list[tuple[int, int]] = []
        """A heap of tips by number, and of what were."""
        self._number = 0

    def place(self, end: int) -> None:
        """A prompt came whose last key is `end`; all of its keys are held now."""
        self._number = number = self._number + 1
        self._ends[end] = self._ends.get(end, _NONE)[0] + 1, number
        if end in self._holding.tips:
            self._enter(end, number)

    def next_out(self) -> list[Gone]:
        """Takes out of the holding what goes next of what is too much, each followed by the one before it;
        nothing where nothing is. There may be others then, once `gone` was told."""
        holding, ends = self._holding, self._ends
        count = holding.size - self.capacity
        if count <= 0:
            return []
        while self._queue:
            number, tip = heappop(self._queue)
            if tip in holding.tips and ends.get(tip, _NONE)[1] == number:
                if number == self._number:  # the prompt that came last should fit
                    stray = next((key for key in holding.tips if key not in ends), None)
                    if stray is not None:
                        heappush(self._queue, (number, tip))
                        return holding.shorten(stray, count, ends)
                return holding.shorten(tip, count, ends)
        # two prompts with one key and another before it, which a hash may do
        return holding.lose(list(holding.parents))

    def retract(self, keys: Sequence[int]) -> list[int]:
        """A prompt was turned away: returns those of its `keys` that no other prompt brought here. They are
        to be forgotten."""
        holding, ends = self._holding, self._ends
        key = next((key for key in reversed(keys) if key in holding.parents), None)
        if key is None or key not in ends:
            return []
        count, number = ends[key]
        ends[key] = max(0, count - 1), number
        out: list[int] = []
        if key not in holding.tips:
            return []
        while not ends.get(key, _NONE)[0]:
            out.append(key)
            before = holding.parents[key]
            if before is None or before in holding.forks or before not in holding.parents:
                break
            key = before
        return out

    def gone(self, lost: Sequence[Gone]) -> None:
        """These are not held any more; with each the key before it. Who ended there ends before it."""
        ended, at = _NONE, None
        """How many ended behind `at`, which is the key before the last one, and the number of the latest."""
        for key, before in lost:
            if key != at:
                self._end_at(at, ended)
                ended = _NONE
            if key in self._ends:
                count, number = self._ends.pop(key)
                ended = ended[0] + count, max(ended[1], number)
            at = before
        self._end_at(at, ended)

    def _end_at(self, key: int | None, ended: tuple[int, int]) -> None:
        if key is None or key not in self._holding.parents:
            return
        count, number = self._ends.get(key, _NONE)
        if ended[1]:
            number = max(number, ended[1])
            self._ends[key] = count + ended[0], number
        if key in self._holding.tips:
            self._enter(key, number)

    def _enter(self, tip: int, number: int) -> None:
        heappush(self._queue, (number, tip))
        if len(self._queue) > _STALE * (len(self._holding.tips) + 1):
            self._queue = [(self._ends.get(key, _NONE)[1], key) for key in self._holding.tips]
            heapify(self._queue)

    def check_integrity(self) -> None:
        """Raises AssertionError where a key would never go."""
        tips = {(self._ends.get(key, _NONE)[1], key) for key in self._holding.tips}
        if not tips <= set(self._queue) or not all(key in self._holding.parents for key in self._ends):
            raise AssertionError("what was guessed of an engine's cache is mixed up")
