"""The engines' events of `make bench`, as a gateway hears them."""

from __future__ import annotations

from itertools import islice

from benchmarks.wire.events import BLOCK, RUN, Told, changing, filling
from gateway.events.ledger import Ledger
from gateway.index.changes import apply_changes
from gateway.index.prefix import PrefixIndex
from gateway.kv.codec import decode_batch, encode_batch
from gateway.types import WorkerId


def test_the_index_fills_up_and_stays_as_full() -> None:
    worker, index, ledger, told = WorkerId("w"), PrefixIndex(), Ledger("m"), Told(1)
    index.add_worker(worker)
    for batch in filling(told, 10 * RUN):
        apply_changes(index, worker, ledger.apply(decode_batch(encode_batch(batch))))
    assert index.stats().blocks == 10 * 32
    for batch in islice(changing(told), 25):
        apply_changes(index, worker, ledger.apply(decode_batch(encode_batch(batch))))
    assert index.stats().blocks == 10 * 32


def test_an_event_is_a_prompt_of_512_tokens() -> None:
    stored = Told(2).store()
    assert (len(stored.block_hashes), len(stored.token_ids)) == (32, 512)
    assert stored.block_size == BLOCK == 16
