"""Where prompts of one kind stop being equal, told from fingerprints alone.

A prefix cache is void behind the first token that differs. Two prompts that say mostly the same and differ
early (a date in the first line, tools in another order) share little of the cache and much of the text. Both
are measured: equal leading blocks are what a cache can reuse, equal pieces anywhere are what it could have
reused. Pieces are cut where the content says so (a hash of three neighbouring tokens), so a token more or
less in front shifts none of them: content-defined chunking (Muthitacharoen et al., LBFS, SOSP'01). Where it
says so nowhere for long (a sentence said over and over has few such places, or none), the last place of the
lowest hash does: the same one in each repetition. A piece counts as often as both prompts have it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

from xxhash import xxh3_64_intdigest

from gateway.kv.keys import BLOCK_SIZE, TOKEN_BYTES, pack_tokens

HEAD_TOKENS = 2048
"""What changes at the front is found at the front."""
_PIECE_TOKENS = 8
"""Mean length of a piece."""
_LONGEST_PIECE = 64
_SHORTEST_FORCED = 16
"""Of a piece that is cut for its length. Text that repeats within the difference is cut alike all through."""
_BYTES_PER_TOKEN = 4
_PIECES_A_STEP = 128
_LAST_OF_STEP = 255
"""Symbols of a step, less one: a power of two."""
_SAME_KIND = 0.5
"""Share of its text that a prompt has in common with another of its kind."""
_LOST_TOKENS = 2 * BLOCK_SIZE
"""Less than this is lost to rounding to blocks, and to the words that every template ends with."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of one prompt. Fingerprints are salted, so they name no text to anybody else."""

    tokens: int
    """Tokens fingerprinted; the prompt may be longer."""
    blocks: tuple[int, ...]
    """Of each block of 16 from the start."""
    pieces: Mapping[int, tuple[int, int, int]]
    """Fingerprint of a piece → (first token, tokens, tokens of all its repetitions)."""


def head_of(tokens: array[int], salt: int, *, from_bytes: bool = False) -> Head:
    """`tokens` is array('I'). `from_bytes`: each is four bytes of text; then pieces are cut between bytes, or
    one letter more in front would shift them all."""
    steps = head_in_steps(tokens, salt, from_bytes=from_bytes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            head: Head = end.value
            return head


def head_in_steps(tokens: array[int], salt: int, *, from_bytes: bool = False) -> Generator[None, None, Head]:
    """The same in steps of a quarter of a millisecond or so: all of it takes up to ten, in which nobody else
    would be served."""
    per_token = _BYTES_PER_TOKEN if from_bytes else 1
    front = tokens[:HEAD_TOKENS]
    # a bytes object would be taken for memory, its iterator is numbers
    symbols = array("I", iter(pack_tokens(front))) if from_bytes else front
    packed = pack_tokens(symbols)
    width = BLOCK_SIZE * per_token * TOKEN_BYTES
    whole = len(packed) // width * width
    blocks = tuple(xxh3_64_intdigest(b, salt) for (b,) in struct.iter_unpack(f"{width}s", packed[:whole]))
    pieces: dict[int, tuple[int, int, int]] = {}
    cuts = yield from _cuts(symbols, per_token)
    for number, (start, end) in enumerate(cuts, 1):
        if not number % _PIECES_A_STEP:
            yield
        fingerprint = xxh3_64_intdigest(packed[start * TOKEN_BYTES : end * TOKEN_BYTES], salt)
        here = start // per_token
        length = end // per_token - here
        first, one, total = pieces.get(fingerprint, (here, length, 0))
        pieces[fingerprint] = first, one, total + length
    return Head(len(front), blocks, pieces)


def _cuts(symbols: array[int], per_token: int) -> Generator[None, None, list[tuple[int, int]]]:
    below = (1 << 32) // (_PIECE_TOKENS * per_token)
    longest, shortest = _LONGEST_PIECE * per_token, _SHORTEST_FORCED * per_token
    pieces: list[tuple[int, int]] = []
    hashes: list[int] = []
    start = before = between = 0
    for i, symbol in enumerate(symbols):
        if not i & _LAST_OF_STEP:
            yield
        rolling = (before * 0x9E3779B1 ^ between * 0x85EBCA77 ^ symbol * 0xC2B2AE3D) & 0xFFFFFFFF
        # multiplication mixes upwards: fold the high half in, so that the comparison sees every bit
        rolling = ((rolling ^ rolling >> 15) * 0x2C1B3C6D) & 0xFFFFFFFF
        hashes.append(rolling)
        before, between = between, symbol
        if rolling < below:
            end = i + 1
        elif i + 1 - start >= longest:
            end = i + 1 - _after_lowest(hashes[start + shortest - 1 :])
        else:
            continue
        pieces.append((start, end))
        start = end
    if start < len(symbols):
        pieces.append((start, len(symbols)))
    return pieces


def _after_lowest(hashes: list[int]) -> int:
    """How many come behind the last place of the lowest."""
    hashes.reverse()
    return hashes.index(min(hashes))


@dataclass(frozen=True, slots=True)
class Kind:
    """Prompts that say mostly the same. Tokens are medians over its prompts."""

    prompts: int
    tokens: float
    equal_prefix_tokens: float
    """What a prefix cache can reuse of one."""
    equal_text_tokens: float
    """What it could reuse if all that changes came last."""
    diverges_at_block: int
    changed_tokens: float
    """From where they differ to where they are equal again."""
    shuffled: bool
    """The same pieces come in another order."""
    lost_tokens: float
    """Over all its prompts: equal text behind the point where they diverge."""


@dataclass(frozen=True, slots=True)
class Divergence:
    prompts: int
    tokens: int
    """Over all prompts."""
    lost_tokens: float
    kinds: tuple[Kind, ...]
    """Those that lose something, worst first."""

    @property
    def lost_share(self) -> float:
        return self.lost_tokens / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class _Match:
    mate: int
    prefix: int
    shared: int
    changed: int
    shuffled: bool

    @property
    def lost(self) -> int:
        lost = self.shared - self.prefix
        return lost if lost >= _LOST_TOKENS else 0


def divergence(heads: Sequence[Head]) -> Divergence:
    """Compares each prompt with all before it: at most a few hundred, for the cost is quadratic."""
    matches: dict[int, _Match] = {}
    kind_of = list(range(len(heads)))
    for i, head in enumerate(heads):
        match = _best(head, heads[:i])
        if match is not None:
            matches[i] = match
            kind_of[i] = kind_of[match.mate]
    kinds: dict[int, list[int]] = {}
    for i in matches:
        kinds.setdefault(kind_of[i], []).append(i)
    rows = [_kind([heads[i] for i in ones], [matches[i] for i in ones]) for ones in kinds.values()]
    losing = sorted((row for row in rows if row.lost_tokens), key=lambda row: -row.lost_tokens)
    return Divergence(
        prompts=len(heads),
        tokens=sum(head.tokens for head in heads),
        lost_tokens=sum(row.lost_tokens for row in losing),
        kinds=tuple(losing),
    )


def _best(head: Head, others: Sequence[Head]) -> _Match | None:
    """The one with the most text in common, but the longest equal prefix of any: that is what a cache has."""
    best, best_shared, prefix = -1, 0, 0
    for i, other in enumerate(others):
        both = head.pieces.keys() & other.pieces.keys()
        shared = sum(min(head.pieces[p][2], other.pieces[p][2]) for p in both)
        prefix = max(prefix, equal_blocks(head, other) * BLOCK_SIZE)
        if shared > best_shared:
            best, best_shared = i, shared
    if best < 0 or best_shared < _SAME_KIND * head.tokens:
        return None
    changed, shuffled = _change(head, others[best])
    return _Match(best, prefix, best_shared, changed, shuffled)


def equal_blocks(a: Head, b: Head) -> int:
    count = 0
    for one, other in zip(a.blocks, b.blocks, strict=False):
        if one != other:
            break
        count += 1
    return count


def _change(head: Head, other: Head) -> tuple[int, bool]:
    """(tokens from the first that differ to where text is equal again, whether equal pieces moved)."""
    front = equal_blocks(head, other) * BLOCK_SIZE
    places = sorted(
        (start, other.pieces[piece][0]) for piece, (start, *_) in head.pieces.items() if piece in other.pieces
    )
    # a phrase that is said twice is found at its first place: one jump back means nothing
    jumps = sum(after < before for (_, before), (_, after) in pairwise(places))
    return _first_gap(head, other, front), jumps >= 2


def _first_gap(head: Head, other: Head, front: int) -> int:
    """Neighbouring pieces of `head` that `other` does not have, the first such run behind `front`. Pieces
    are as fine as it gets: a few tokens around what differs are counted with it."""
    begin = end = front
    for start, tokens, _ in sorted(
        place for piece, place in head.pieces.items() if piece not in other.pieces
    ):
        if start + tokens <= front:
            continue
        if end == front:
            begin, end = max(start, front), start + tokens
        elif start <= end:
            end = start + tokens
        else:
            break
    return end - begin


def _kind(heads: Sequence[Head], matches: Sequence[_Match]) -> Kind:
    losing = [m for m in matches if m.lost] or list(matches)
    return Kind(
        prompts=len(heads) + 1,
        tokens=median(head.tokens for head in heads),
        equal_prefix_tokens=median(m.prefix for m in matches),
        equal_text_tokens=median(max(m.shared, m.prefix) for m in matches),
        diverges_at_block=int(median_low(m.prefix // BLOCK_SIZE for m in losing)),
        changed_tokens=median(m.changed for m in losing),
        shuffled=2 * sum(m.shuffled for m in losing) > len(losing),
        lost_tokens=float(sum(m.lost for m in matches)),
    )
