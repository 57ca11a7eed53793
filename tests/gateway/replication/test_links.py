"""What comes before each block, as a writer tells its successors and mirrors."""

from __future__ import annotations

import pytest

from gateway.events.books import BookSink
from gateway.events.stream import Position
from gateway.index.holding import UNKNOWN
from gateway.index.prefix import PrefixIndex
from gateway.kv.events import BlockStored, EventBatch
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.types import BlockKey, CacheScope, WorkerId

W = WorkerId("http://engine:8000")


@pytest.mark.anyio
async def test_a_block_that_the_index_gave_up_is_told_without_what_comes_before_it() -> None:
    """The engine holds it, so whoever loads it counts it; no match leaps over what may be missing there."""
    tokens = tuple(range(640))
    keys = block_keys(root_key(CacheScope("m")), pack_tokens(tokens))
    index = PrefixIndex()
    index.add_worker(W)
    sink = BookSink(W, index, "m", 16)
    store = BlockStored(tuple(range(40)), None, tokens, 16)
    await sink.apply(W, sink.ledger.apply(EventBatch(0.0, (store,))), Position(1, 7))
    index.refute(W, keys, 20)
    told: dict[BlockKey, BlockKey | None] = {}
    for part in sink.whole():
        told.update(part.parents)
    assert [told[key] for key in keys] == [None, *keys[:19], *[UNKNOWN] * 20]

    mirror = PrefixIndex()
    mirror.add_worker(W)
    for key in reversed(keys):
        mirror.load(W, [key], told[key], {})
    assert mirror.match(keys, 0.0) == {W: 40}
    mirror.remove(W, [keys[30]])
    assert mirror.match(keys, 0.0) == {W: 30}
    mirror.check_integrity()
