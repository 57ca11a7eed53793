"""A tokenizer that remembers the pieces of a chat.

Why cutting is exact: a Hugging Face tokenizer first cuts the text at its added tokens (leftmost match,
longest first), and normalises, splits and merges each piece between them alone. So a text may be cut before
any match of an added token and the parts encoded apart, if the match does not reach into its neighbours: the
token is matched on the raw text, as part of a word or not, takes no blanks from its sides, and neither begins
nor ends with a blank that a neighbour could take. Each segment but the first begins with such a token, and is
encoded together with it: what a tokenizer does at the head of the whole text only (a space put before it)
happens in the first segment only. Without such tokens there is one segment, the text: slower, never wrong.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer

from gateway.prompt.quick import Library, quickest

_ENTRY_OVERHEAD = 256
"""Bytes that an entry costs beside its text and tokens: three objects and a place in the map."""
_SLICE = 65_536


@dataclass(slots=True)
class TokenPlan:
    """One text on its way to tokens: what is known of its segments, and which are still to be encoded."""

    segments: list[str]
    known: list[array[int] | None]
    missing_chars: int

    def tokens(self) -> array[int]:
        """Call it when every segment is known."""
        joined = array("I")
        for part in self.known:
            if part is not None:
                joined.extend(part)
        return joined


class SegmentedTokenizer:
    """Encodes without the special tokens of `add_special_tokens`: `edges` says what those are.

    `plan` and `remember` touch the cache and belong to one thread; `complete` touches only the plan, and may
    run in another. The cache holds at most `cache_bytes`; the least recently used segments leave first.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, cache_bytes: int = 64 * 1024 * 1024, library: Library | None = None
    ) -> None:
        self.library = library or quickest(tokenizer)
        self._boundary = _Boundaries(tokenizer.get_added_tokens_decoder().values())
        self._cache: OrderedDict[str, array[int]] = OrderedDict()
        self._room = cache_bytes
        self._used = 0
        self.edges = _edge_tokens(tokenizer)
        """Token ids that `add_special_tokens` puts before and after a text."""

    def __repr__(self) -> str:
        return f"<SegmentedTokenizer {len(self._cache)} segments, {self._used} bytes>"

    @property
    def cached_bytes(self) -> int:
        return self._used

    def split(self, text: str) -> list[str]:
        return self._boundary.split(text)

    def encode(self, text: str) -> array[int]:
        plan = self.plan(text)
        self.complete(plan)
        self.remember(plan)
        return plan.tokens()

    def plan(self, text: str) -> TokenPlan:
        segments = self._boundary.split(text)
        known: list[array[int] | None] = []
        missing = 0
        for segment in segments:
            found = self._cache.get(segment)
            if found is None:
                missing += len(segment)
            else:
                self._cache.move_to_end(segment)
            known.append(found)
        return TokenPlan(segments, known, missing)

    def complete(self, plan: TokenPlan) -> None:
        """Encodes what is missing. The tokenizer lets go of the interpreter lock while it works."""
        missing = [index for index, part in enumerate(plan.known) if part is None]
        if not missing:
            return
        texts = [plan.segments[index] for index in missing]
        for index, ids in zip(missing, self.library.encode(texts), strict=True):
            plan.known[index] = _packed(ids)

    def remember(self, plan: TokenPlan) -> None:
        for segment, tokens in zip(plan.segments, plan.known, strict=True):
            if tokens is None or segment in self._cache:
                continue
            size = _entry_bytes(segment, tokens)
            if size > self._room:
                continue
            self._cache[segment] = tokens
            self._used += size
        while self._used > self._room:
            segment, tokens = self._cache.popitem(last=False)
            self._used -= _entry_bytes(segment, tokens)


def _packed(ids: list[int]) -> array[int]:
    """In slices: this runs in a thread, and the event loop gets the interpreter between two of them only."""
    packed = array("I", ids[:_SLICE])
    for start in range(_SLICE, len(ids), _SLICE):
        packed.extend(ids[start : start + _SLICE])
    return packed


def _entry_bytes(segment: str, tokens: array[int]) -> int:
    return len(segment.encode("utf-8", "surrogatepass")) + tokens.itemsize * len(tokens) + _ENTRY_OVERHEAD


def _edge_tokens(tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]] | None:
    """Found by encoding a probe both ways; None where the probe's own tokens do not reappear between."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return None


class _Boundaries:
    """Where a text may be cut: before each match of a plain added token."""

    def __init__(self, added: Iterable[AddedToken]) -> None:
        raw = [token for token in added if not token.normalized and token.content]
        self._plain = frozenset(token.content for token in raw if _is_plain(token))
        # tokens that are no boundaries are matched too: what they cover is not matched again
        self._pattern = re.compile(_trie_pattern(token.content for token in raw)) if self._plain else None

    def split(self, text: str) -> list[str]:
        if self._pattern is None:
            return [text] if text else []
        plain = self._plain
        cuts = [match.start() for match in self._pattern.finditer(text) if match.group() in plain]
        edges = [0, *(cut for cut in cuts if cut), len(text)]
        return [text[a:b] for a, b in pairwise(edges) if a < b]


def _is_plain(token: AddedToken) -> bool:
    flags = token.lstrip or token.rstrip or token.single_word
    return not flags and token.content.strip() == token.content


def _trie_pattern(words: Iterable[str]) -> str:
    """An expression that matches the longest of `words`. As a trie: engines reserve hundreds of tokens, and a
    flat alternation would try each of them at every "<" of a text.
    """
    root: dict[str, dict[str, object]] = {}
    for word in words:
        node: dict[str, object] = root  # type: ignore[assignment]
        for char in word:
            node = node.setdefault(char, {})  # type: ignore[assignment]
        node[""] = {}
    return _node_pattern(root)


def _node_pattern(node: dict[str, dict[str, object]]) -> str:
    branches = [re.escape(c) + _node_pattern(child) for c, child in node.items() if c]  # type: ignore[arg-type]
    if not branches:
        return ""
    if len(branches) == 1 and "" not in node:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if "" in node else "")
