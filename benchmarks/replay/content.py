"""From names of blocks to tokens and keys. Real token ids, so that the ledger hashes what it would hash.

A named block is its name, repeated. A request's answer fills blocks as well: where a next turn repeats it,
they carry the next turn's names, so that the turn finds them; else names that nobody else has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from typing import overload

from benchmarks.replay.trace import Trace
from gateway.kv.keys import block_keys, cacheable_blocks, pack_tokens, root_key
from gateway.types import BlockKey, CacheScope

MODEL = "replayed"
SCOPE = CacheScope(MODEL)


class PromptTokens(Sequence[int]):
    """A prompt of `length` tokens, each of `blocks` standing for `unit` of them. A slice is a tuple. Never
    written out as a whole: an engine reads only what it has to compute, and a trace's prompts together are
    gigabytes."""

    __slots__ = ("_blocks", "_length", "_unit")

    def __init__(self, blocks: Sequence[int], unit: int, length: int) -> None:
        self._blocks, self._unit, self._length = blocks, unit, length

    def __len__(self) -> int:
        return self._length

    def first(self, length: int) -> PromptTokens:
        return PromptTokens(self._blocks, self._unit, length)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        places = range(self._length)[index]
        if isinstance(places, int):
            return self._blocks[places // self._unit]
        if places.step != 1:
            return tuple(self._blocks[place // self._unit] for place in places)
        unit = self._unit
        first = places.start // unit
        covering = self._blocks[first : -(-places.stop // unit)]
        tokens = tuple(chain.from_iterable(repeat(block, unit) for block in covering))
        return tokens[places.start - first * unit : places.stop - first * unit]


class Content:
    """Tokens and keys of one trace's requests, for engines with blocks of `block_size` tokens."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        if trace.unit % block_size:
            raise ValueError(f"the trace's blocks of {trace.unit} are not made of blocks of {block_size}")
        self.trace = trace
        self.block_size = block_size
        self._factor = trace.unit // block_size
        self._fresh = max((max(r.ids) for r in trace.requests if r.ids), default=0) + 1
        self._lines = [self._line(number, child) for number, child in enumerate(_next_turns(trace))]
        self._keys: dict[int, list[BlockKey]] = {}
        self._prompt_keys = [self._chain(number) for number in range(len(trace.requests))]

    def tokens(self, number: int) -> PromptTokens:
        """The prompt."""
        return PromptTokens(self._lines[number], self.trace.unit, self.trace.requests[number].input_tokens)

    def answer(self, number: int) -> Iterator[int]:
        """The answer's tokens, one by one."""
        request = self.trace.requests[number]
        unit, line = self.trace.unit, self._lines[number]
        first, offset = divmod(request.input_tokens, unit)
        blocks = chain.from_iterable(repeat(block, unit) for block in line[first:])
        return islice(blocks, offset, offset + request.output_tokens)

    def full_keys(self, number: int) -> list[BlockKey]:
        """Of every full block of the prompt."""
        return self._prompt_keys[number]

    def cacheable_keys(self, number: int) -> list[BlockKey]:
        limit = cacheable_blocks(self.trace.requests[number].input_tokens, self.block_size)
        keys = self._prompt_keys[number]
        return keys if limit >= len(keys) else keys[:limit]

    def line_blocks(self, number: int) -> tuple[list[tuple[int, int]], int]:
        """For ceilings: a name for each full block of prompt and answer, and how many of the first ones
        a cache could have served."""
        request = self.trace.requests[number]
        total = (request.input_tokens + request.output_tokens - 1) // self.block_size
        factor, line = self._factor, self._lines[number]
        names = [(line[place // factor], place % factor) for place in range(total)]
        return names, cacheable_blocks(request.input_tokens, self.block_size)

    def _line(self, number: int, child: int | None) -> tuple[int, ...]:
        requests = self.trace.requests
        request, unit = requests[number], self.trace.unit
        total = -(-(request.input_tokens + request.output_tokens) // unit)
        line = request.ids[: request.input_tokens // unit]
        if child is not None:
            line += requests[child].ids[len(line) : min(total, requests[child].input_tokens // unit)]
        elif len(line) < len(request.ids):
            line += request.ids[len(line) : len(line) + 1]
        return line + (self._fresh + number,) * (total - len(line))

    def _chain(self, number: int) -> list[BlockKey]:
        """Names stand for all before them, so the keys of a name are the same wherever it stands."""
        keys: list[BlockKey] = []
        parent = root_key(SCOPE)
        unit, size = self.trace.unit, self.block_size
        full, rest = divmod(self.trace.requests[number].input_tokens, unit)
        line = self._lines[number]
        for block in line[:full]:
            known = self._keys.get(block)
            if known is None:
                known = self._keys[block] = block_keys(parent, pack_tokens([block] * unit), block_size=size)
            keys += known
            parent = known[-1]
        if rest >= size:
            keys += block_keys(parent, pack_tokens([line[full]] * (rest // size * size)), block_size=size)
        return keys


def _next_turns(trace: Trace) -> list[int | None]:
    """Of each request the first that waits for its answer, if that one's prompt goes on where it ended and
    is long enough to repeat it."""
    turns: list[int | None] = [None] * len(trace.requests)
    for number, request in enumerate(trace.requests):
        parent = request.parent
        if parent is None or turns[parent] is not None:
            continue
        before = trace.requests[parent]
        full = before.input_tokens // trace.unit
        goes_on = request.ids[:full] == before.ids[:full]
        if goes_on and request.input_tokens >= before.input_tokens + before.output_tokens:
            turns[parent] = number
    return turns
