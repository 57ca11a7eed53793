"""What peers' words do to the load, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.load import LoadBoard, LoadVector
from gateway.fleet.sharing.bus import WORD_S
from gateway.fleet.sharing.peers import SILENT_AFTER_S, Peers
from gateway.fleet.sharing.sharing import Pace
from gateway.fleet.sharing.words import Placement, Word, decode, encode
from gateway.types import BlockKey, WorkerId

A, B = WorkerId("http://a"), WorkerId("http://b")


class Placed:
    def __init__(self) -> None:
        self.seen: list[tuple[WorkerId, list[BlockKey], float]] = []

    def __call__(self, worker: WorkerId, keys: Sequence[BlockKey], now: float) -> None:
        self.seen.append((worker, list(keys), now))


@pytest.fixture
def board() -> LoadBoard:
    board = LoadBoard()
    board.add(A)
    board.add(B)
    return board


def peer_requests(board: LoadBoard) -> dict[str, int]:
    return {load.worker: load.peer_requests for load in board}


def test_the_last_word_of_a_replica_is_the_truth(board: LoadBoard) -> None:
    peers = Peers("me", board, Placed())
    peers.hear(Word("r1", 1, {A: LoadVector(2, 300, 0)}), 0.0)
    peers.hear(Word("r2", 1, {A: LoadVector(1, 50, 0), B: LoadVector(1, 0, 70)}), 0.0)
    assert peer_requests(board) == {A: 3, B: 1}
    peers.hear(Word("r1", 2, {B: LoadVector(4, 0, 900)}), 0.1)
    assert peer_requests(board) == {A: 1, B: 5}
    load = board.get(B)
    assert load is not None
    assert (load.peer_waiting_tokens, load.peer_decoding_tokens) == (0, 970)


def test_a_partial_word_leaves_other_workers_as_they_were(board: LoadBoard) -> None:
    peers = Peers("me", board, Placed())
    peers.hear(Word("r1", 1, {A: LoadVector(2, 300, 0)}), 0.0)
    peers.hear(Word("r1", 2, {B: LoadVector(1, 64, 0)}, whole=False), 0.0)
    assert peer_requests(board) == {A: 2, B: 1}


def test_the_own_echo_and_late_copies_change_nothing(board: LoadBoard) -> None:
    placed = Placed()
    peers = Peers("me", board, placed)
    assert not peers.hear(Word("me", 1, {A: LoadVector(9, 9, 9)}, [Placement(A, [BlockKey(1)])]), 0.0)
    assert peers.hear(Word("r1", 5, {A: LoadVector(1, 10, 0)}), 0.0)
    assert not peers.hear(Word("r1", 5, {A: LoadVector(7, 7, 7)}), 0.0)
    assert not peers.hear(Word("r1", 4, {A: LoadVector(7, 7, 7)}), 0.0)
    assert peer_requests(board) == {A: 1, B: 0}
    assert placed.seen == []


def test_a_silent_replica_is_dropped_with_all_it_held(board: LoadBoard) -> None:
    peers = Peers("me", board, Placed(), silent_after_s=2.5)
    peers.hear(Word("r1", 1, {A: LoadVector(2, 300, 0)}), 10.0)
    peers.hear(Word("r2", 1, {A: LoadVector(1, 50, 0)}), 11.0)
    assert peers.expire(12.5) == []
    assert peers.expire(12.6) == ["r1"]
    assert peer_requests(board) == {A: 1, B: 0}
    assert peers.names() == ["r2"]
    peers.hear(Word("r1", 2, {A: LoadVector(3, 0, 5)}), 13.0)  # it was only slow
    assert peer_requests(board) == {A: 4, B: 0}


def test_one_that_says_goodbye_leaves_nothing(board: LoadBoard) -> None:
    peers = Peers("me", board, Placed())
    peers.hear(Word("r1", 1, {A: LoadVector(2, 300, 0)}), 0.0)
    peers.hear(Word("r1", 2, leaving=True), 0.0)
    assert peer_requests(board) == {A: 0, B: 0}
    assert len(peers) == 0


def test_placements_reach_the_index_with_the_time_they_were_heard(board: LoadBoard) -> None:
    placed = Placed()
    peers = Peers("me", board, placed)
    keys = [BlockKey(1), BlockKey(2**64 - 1)]
    peers.hear(Word("r1", 1, {A: LoadVector(1, 32, 0)}, [Placement(A, keys)], whole=False), 7.0)
    assert placed.seen == [(A, keys, 7.0)]


vectors = st.builds(LoadVector, *[st.integers(0, 2**40)] * len(LoadVector._fields))
workers = st.text(min_size=1, max_size=30).map(WorkerId)
placements = st.builds(Placement, workers, st.lists(st.integers(0, 2**64 - 1).map(BlockKey), max_size=20))
words = st.builds(
    Word, st.text(max_size=20), st.integers(0, 2**40), st.dictionaries(workers, vectors, max_size=5),
    st.lists(placements, max_size=4), st.booleans(), st.booleans(),
)  # fmt: skip


@settings(deadline=None)
@given(words)
def test_a_word_survives_the_wire(word: Word) -> None:
    assert decode(encode(word)) == word


@pytest.mark.parametrize("figures", [[1, 64, 0], [1, 64, 0, 80, 5, 6, 7]], ids=["fewer", "more"])
def test_a_word_of_another_release_is_read_as_far_as_it_is_understood(figures: list[int]) -> None:
    wire = [1, "r", 3, True, False, {"http://a": figures}, [], "something new"]
    word = decode(msgspec.msgpack.encode(wire))
    assert word is not None
    vector = word.loads[A]
    assert (vector.requests, vector.waiting_tokens, vector.decoding_tokens) == (1, 64, 0)


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", encode(Word("r", 1))[:-3], b"\x97\x02\xa1r\x01\xc3\xc2\x80\x90", b"\x91\x01",
     b"\x97\x01\xa1r\x01\xc3\xc2\x80\x91\x92\xa1w\xc4\x03abc"],
    ids=["empty", "text", "cut", "another format", "short", "keys of 3 bytes"],
)  # fmt: skip
def test_what_is_no_word_is_none(data: bytes) -> None:
    assert decode(data) is None


def test_a_silent_replica_is_noticed_within_three_seconds_by_construction() -> None:
    """After its last word it has `SILENT_AFTER_S`; who looks may be held up by a word of its own that Redis
    does not take, the pause that follows, and a tick. Almost half a second is left for a busy machine."""
    held_up = WORD_S + Pace().retry + Pace().tick
    assert SILENT_AFTER_S + held_up <= 3.0 - 0.4
    assert 6 * Pace().beat <= SILENT_AFTER_S, "who is only slow misses five words, and is still there"
