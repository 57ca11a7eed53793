"""Very long prompts reach their worker in slices, so that short ones pass them.

An engine computes prompts in order of arrival: who comes behind one of 100,000 tokens waits for all of it.
Where such a prompt is sent in slices, its worker is asked first for the beginning alone, then for more, each
time for one token that nobody reads, and last for the answer itself. Each finds in the engine's prefix cache
what those before it left there, so that nothing is computed twice, and between two of them whoever came
meanwhile has a turn.

Who yields is late by it. So it is for prompts alone that cannot be in time anyway: that take longer than
`Slicing.after_s` by themselves. They yield while the fleet has slack and the worker room for them, and no
more than a quarter of what they take by themselves; then the rest is sent in one piece.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.fleet.load import WorkerLoad
from gateway.types import BlockKey

LEAST_IDLE = 0.5
"""Of the fleet's workers, how many must be without a queue, but for prompts that yield: where everybody
waits, to yield at each slice would be to wait for everybody, over and over."""
MOST_OF_CACHE = 0.3
"""Of the worker's cache, how much the prompt may need: blocks between two slices are cached, not held, and
where few such prompts fill the cache, they are gone before the next slice comes."""
MOST_LAG = 0.25
"""Of what a prompt takes by itself, how much it may lose to others before the rest goes in one piece."""
_REST = 1.25
"""Slices that are not worth two."""


@dataclass(frozen=True, slots=True)
class Slicing:
    after_s: float = 0.0
    """Seconds of prefill from which on a prompt is sent in slices; 0: none is."""
    tokens: int = 16_000
    """Of a slice: some steps of an engine, for each costs one step more than its tokens."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one prompt goes to its worker."""

    prompt_tokens: int
    cached_tokens: int
    """Of its beginning, what the worker should have already."""
    seconds: float
    """What the rest takes an engine that does nothing else, as far as is known."""
    tokens: int
    block: int
    """Tokens of an engine's block: slices end with one, or their last one would be computed twice."""

    @property
    def yields_tokens(self) -> int:
        """What of it nobody has to wait for who comes later: all but one slice."""
        return self.prompt_tokens - self.cached_tokens - self.tokens

    @property
    def rest_tokens(self) -> float:
        """As much goes in one piece."""
        return _REST * self.tokens

    def next_cut(self, done: int) -> int | None:
        """Tokens of the next beginning to ask for, where `done` are there; None: the request itself comes."""
        if self.prompt_tokens - done <= self.rest_tokens:
            return None
        return (done + self.tokens) // self.block * self.block

    @property
    def cuts(self) -> list[int]:
        """All of its slices, by where they end, where nothing comes in between."""
        found, done = list[int](), self.cached_tokens
        while (cut := self.next_cut(done)) is not None:
            found.append(cut)
            done = cut
        return found

    def room_taken(self, done: int, cached: int) -> bool:
        """The engine had `cached` tokens where slices had left `done`: somebody needed the room, and the next
        slice would compute it all again. A block may be a question of rounding."""
        return done - cached >= 2 * self.block

    def hold_s(self, elapsed_s: float, done: int) -> float:
        """How long it may still be held for others, where it came `elapsed_s` ago and `done` tokens are
        there; below zero, it has yielded enough. Its work is taken to go by tokens, which flatters the later
        ones: they attend to more. So it yields a little less towards its end."""
        share = (done - self.cached_tokens) / (self.prompt_tokens - self.cached_tokens)
        return self.seconds * (share + MOST_LAG) - elapsed_s


@dataclass(frozen=True, slots=True)
class Sliced:
    """A plan, and the tokens that it is about."""

    plan: Plan
    ids: array[int]


NO_SLICING = Slicing()


def owes(
    keys: Sequence[BlockKey], done: int, promised: Sequence[BlockKey], blocks: int, held: int, unit: int
) -> bool:
    """Whether of a prompt with these `keys`, of which `done` tokens are there, somebody was promised a part
    that is not: `blocks` of his own keys, `promised`, of which the worker held the first `held` anyway. A
    block is `unit` tokens."""
    blocks = min(blocks, len(keys), len(promised))
    return blocks * unit > done and blocks > held and promised[blocks - 1] == keys[blocks - 1]


def plan(
    slicing: Slicing,
    *,
    prompt_tokens: int,
    matched_tokens: int,
    seconds: float | None,
    block: int,
    load: WorkerLoad,
    loads: Sequence[WorkerLoad],
) -> Plan | None:
    """For a prompt that is about to go to the worker of `load`; None where it goes in one piece. `seconds`
    are what its uncached tokens take there by themselves, None where nothing was measured. `loads` are those
    of all candidates, without it."""
    if not slicing.after_s or seconds is None or seconds <= slicing.after_s:
        return None
    if prompt_tokens - matched_tokens <= _REST * slicing.tokens or block > slicing.tokens:
        return None
    room = load.capacity_tokens - load.all_context_tokens
    if prompt_tokens > min(room, MOST_OF_CACHE * load.capacity_tokens):  # 0: its size is not known
        return None
    idle = sum(not other.all_waiting_tokens or other.all_yielding_tokens > 0 for other in loads)
    if idle < LEAST_IDLE * len(loads):
        return None
    return Plan(prompt_tokens, matched_tokens, seconds, slicing.tokens, block)
