"""Which turn of its conversation a prompt is, told from block keys, and what turns cost.

The next turn of a chat begins with the prompt before it. So a prompt that contains the last block of an
earlier one is its next turn; no session id is needed, and no text.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

import msgspec

from gateway.types import BlockKey

_FARTHEST = 4096
"""Blocks of one prompt that are looked at, from its end."""


class Conversations:
    """Bounded: the conversations that were silent longest are forgotten."""

    def __init__(self, max_conversations: int = 16_384) -> None:
        self._max = max_conversations
        self._ends: OrderedDict[BlockKey, int] = OrderedDict()
        """Last block of a prompt → which turn that prompt was."""

    def turn(self, keys: Sequence[BlockKey]) -> int:
        """1 for a prompt that continues none known; the same prompt again is the same turn again."""
        if not keys:
            return 1
        last = keys[-1]
        latest = next(filter(self._ends.__contains__, islice(reversed(keys), _FARTHEST)), None)
        turn = 1 if latest is None else self._ends[latest] + (latest != last)
        self._ends[last] = turn
        self._ends.move_to_end(last)
        if len(self._ends) > self._max:
            self._ends.popitem(last=False)
        return turn


class Reply(msgspec.Struct, frozen=True):
    """One answered request. Seconds; `ttft_s` is None where the answer came in one piece."""

    turn: int
    prompt_tokens: int
    uncached_tokens: int
    ttft_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class TurnRow:
    """All replies of some turns: medians."""

    first_turn: int
    replies: int
    prompt_tokens: float
    uncached_tokens: float
    ttft_s: float | None
    total_s: float


class Replies:
    """The last replies of one model."""

    def __init__(self, max_replies: int = 4096) -> None:
        self._replies: deque[Reply] = deque(maxlen=max_replies)

    def add(self, reply: Reply) -> None:
        self._replies.append(reply)

    def by_turn(self) -> tuple[TurnRow, ...]:
        """Turns 1, 2, 3–4, 5–8, 9–16 and so on."""
        groups: dict[int, list[Reply]] = {}
        for reply in self._replies:
            groups.setdefault(first_of_group(reply.turn), []).append(reply)
        return tuple(_row(first, groups[first]) for first in sorted(groups))


def first_of_group(turn: int) -> int:
    """5 for turns 5…8: groups double."""
    return 1 if turn <= 1 else 2 ** ((turn - 1).bit_length() - 1) + 1


def _row(first: int, replies: Sequence[Reply]) -> TurnRow:
    ttfts = [reply.ttft_s for reply in replies if reply.ttft_s is not None]
    return TurnRow(
        first_turn=first,
        replies=len(replies),
        prompt_tokens=median(reply.prompt_tokens for reply in replies),
        uncached_tokens=median(reply.uncached_tokens for reply in replies),
        ttft_s=median(ttfts) if ttfts else None,
        total_s=median(reply.total_s for reply in replies),
    )
