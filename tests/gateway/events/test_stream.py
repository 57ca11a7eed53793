"""Sequence numbers: next, copies, gaps, other lives of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.stream import START, EventStream, Position, Verdict

APPLY, SKIP, LOST, REPLAY, RESTARTED = (
    Verdict.APPLY,
    Verdict.SKIP,
    Verdict.LOST,
    Verdict.REPLAY,
    Verdict.RESTARTED,
)


def life(name: str, seq: int) -> bytes:
    """What the engine published under `seq` in this life: no two payloads are alike."""
    return f"{name}-{seq}".encode()


def follow(*seqs: int, name: str = "a") -> EventStream:
    stream = EventStream()
    for seq in seqs:
        assert stream.live(seq, life(name, seq)) is APPLY
    return stream


def test_batches_in_order_apply() -> None:
    assert follow(0, 1, 2).position.next_seq == 3


def test_a_copy_of_the_last_is_skipped() -> None:
    stream = follow(0, 1)
    assert stream.live(1, life("a", 1)) is SKIP
    assert stream.position.next_seq == 2


def test_a_jump_back_is_another_life() -> None:
    stream = follow(0, 1, 2)
    assert stream.live(0, life("b", 0)) is RESTARTED
    assert stream.position == START
    assert stream.live(0, life("b", 0)) is APPLY


def test_the_last_number_with_other_content_is_another_life() -> None:
    assert follow(0, 1, 2).live(2, life("b", 2)) is RESTARTED


def test_a_gap_is_replayed_and_the_batch_behind_it_is_then_a_copy() -> None:
    stream = follow(0, 1)
    assert stream.live(4, life("a", 4)) is REPLAY
    assert stream.begin_replay() == 1
    assert [stream.replayed(seq, life("a", seq)) for seq in (1, 2, 3, 4)] == [SKIP, APPLY, APPLY, APPLY]
    assert stream.end_replay() is SKIP
    assert stream.live(4, life("a", 4)) is SKIP
    assert stream.live(5, life("a", 5)) is APPLY


def test_a_gap_that_nobody_replays_is_a_new_epoch_with_what_follows() -> None:
    stream = follow(0, 1)
    assert stream.live(4, life("a", 4)) is REPLAY
    assert stream.give_up(4, life("a", 4)) is LOST
    assert stream.live(5, life("a", 5)) is APPLY


def test_what_the_replay_no_longer_has_is_lost_and_the_rest_follows() -> None:
    stream = follow(0, 1)
    assert stream.live(9, life("a", 9)) is REPLAY
    assert stream.begin_replay() == 1
    assert [stream.replayed(seq, life("a", seq)) for seq in (7, 8, 9)] == [LOST, APPLY, APPLY]
    assert stream.end_replay() is SKIP
    assert stream.live(9, life("a", 9)) is SKIP


def test_first_contact_with_a_long_lived_engine_begins_with_the_oldest_there_is() -> None:
    stream = EventStream()
    assert stream.begin_replay() == 0
    assert [stream.replayed(seq, life("a", seq)) for seq in (5000, 5001)] == [APPLY, APPLY]
    assert stream.end_replay() is SKIP
    assert stream.position.next_seq == 5002


def test_first_contact_without_replay_begins_with_the_first_live_batch() -> None:
    stream = EventStream()
    assert stream.live(700, life("a", 700)) is REPLAY
    assert stream.give_up(700, life("a", 700)) is APPLY
    assert stream.live(701, life("a", 701)) is APPLY


def test_a_fresh_engine_has_nothing_to_replay() -> None:
    stream = EventStream()
    assert stream.begin_replay() == 0
    assert stream.end_replay() is SKIP
    assert stream.live(0, life("a", 0)) is APPLY


def test_an_engine_that_has_less_than_we_had_was_restarted() -> None:
    stream = follow(0, 1, 2)
    assert stream.begin_replay() == 2
    assert stream.end_replay() is RESTARTED
    assert stream.begin_replay() == 0
    assert [stream.replayed(seq, life("b", seq)) for seq in (0, 1)] == [APPLY, APPLY]
    assert stream.end_replay() is SKIP


def test_an_engine_that_has_more_but_other_batches_was_restarted() -> None:
    """The trap: the new life passed the old number meanwhile, so that no number ever jumps back."""
    stream = follow(0, 1, 2)
    assert stream.begin_replay() == 2
    assert stream.replayed(2, life("b", 2)) is RESTARTED
    assert stream.begin_replay() == 0
    assert [stream.replayed(seq, life("b", seq)) for seq in range(5)] == [APPLY] * 5


def test_a_reply_that_got_lost_is_asked_for_again_once() -> None:
    stream = follow(0)
    stream.begin_replay()
    assert [stream.replayed(seq, life("a", seq)) for seq in (0, 1, 3)] == [SKIP, APPLY, REPLAY]
    assert stream.begin_replay() == 1
    assert [stream.replayed(seq, life("a", seq)) for seq in (1, 2, 3)] == [SKIP, APPLY, APPLY]
    stream.begin_replay()
    assert [stream.replayed(seq, life("a", seq)) for seq in (3, 5)] == [SKIP, REPLAY]
    stream.begin_replay()
    assert [stream.replayed(seq, life("a", seq)) for seq in (3, 5)] == [SKIP, LOST]


def test_a_publisher_that_replays_more_than_was_asked() -> None:
    stream = follow(0, 1, 2)
    assert stream.begin_replay() == 2
    assert [stream.replayed(seq, life("a", seq)) for seq in range(4)] == [SKIP, SKIP, SKIP, APPLY]


def test_live_copies_of_replayed_batches_are_skipped_even_long_after() -> None:
    """Subscription and replay are two connections: the first may lag behind the second."""
    stream = EventStream()
    stream.begin_replay()
    for seq in range(100):
        stream.replayed(seq, life("a", seq))
    stream.end_replay()
    assert [stream.live(seq, life("a", seq)) for seq in range(60, 101)] == [SKIP] * 40 + [APPLY]


def test_a_restart_after_a_replay_is_not_taken_for_a_copy() -> None:
    stream = EventStream()
    stream.begin_replay()
    for seq in range(100):
        stream.replayed(seq, life("a", seq))
    stream.end_replay()
    assert stream.live(70, life("b", 70)) is RESTARTED


def test_a_successor_verifies_the_engine_it_takes_over() -> None:
    position = follow(0, 1, 2).position
    assert position == Position(3, position.digest)
    same = EventStream(position)
    assert same.begin_replay() == 2
    assert [same.replayed(seq, life("a", seq)) for seq in (2, 3)] == [SKIP, APPLY]
    other = EventStream(position)
    other.begin_replay()
    assert other.replayed(2, life("b", 2)) is RESTARTED


@dataclass
class Publisher:
    """An engine in many lives, with a bounded memory."""

    kept: int
    name: int = 0
    next_seq: int = 0
    buffer: list[tuple[int, bytes]] = field(default_factory=list)

    def publish(self) -> tuple[int, bytes]:
        batch = self.next_seq, life(str(self.name), self.next_seq)
        self.buffer = [*self.buffer, batch][-self.kept :]
        self.next_seq += 1
        return batch

    def restart(self) -> None:
        self.name, self.next_seq, self.buffer = self.name + 1, 0, []


class Books:
    """Obeys verdicts as a follower does, and remembers what is applied in this epoch."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.stream = EventStream()
        self.applied: list[bytes] = []

    def obey(self, verdict: Verdict, payload: bytes = b"") -> bool:
        if verdict in (LOST, RESTARTED):
            self.applied = []
        if verdict in (APPLY, LOST):
            self.applied.append(payload)
        return verdict in (REPLAY, RESTARTED)

    def catch_up(self, drop: int | None = None) -> None:
        while self._replay_is_cut_short(drop):
            drop = None

    def _replay_is_cut_short(self, drop: int | None) -> bool:
        start = self.stream.begin_replay()
        replies = [batch for batch in self.publisher.buffer if batch[0] >= start]
        for place, (seq, payload) in enumerate(replies):
            if place != drop and self.obey(self.stream.replayed(seq, payload), payload):
                return True
        return self.obey(self.stream.end_replay())

    def live(self, seq: int, payload: bytes) -> None:
        verdict = self.stream.live(seq, payload)
        if self.obey(verdict, payload):
            self.catch_up()
            verdict = self.stream.live(seq, payload)
            if self.obey(verdict, payload):
                self.obey(self.stream.give_up(seq, payload), payload)


@given(
    st.integers(1, 6),
    st.lists(st.sampled_from(["publish", "publish", "lose", "restart", "reconnect", "lag"]), max_size=40),
    st.none() | st.integers(1, 5),  # a full socket loses a later reply, never the first
)
def test_whatever_happens_the_books_end_with_this_lifes_batches(
    kept: int, story: list[str], drop: int | None
) -> None:
    """Lost batches, restarts, slow subscriptions, a short memory: after one more look at the engine the books
    hold a complete end of its present life, at least all that it still has, and nothing of another life."""
    publisher = Publisher(kept)
    books = Books(publisher)
    lagging: list[tuple[int, bytes]] = []
    for event in story:
        match event:
            case "publish":
                lagging.append(publisher.publish())
                for batch in lagging:
                    books.live(*batch)
                lagging = []
            case "lag":
                lagging.append(publisher.publish())
            case "lose":
                publisher.publish()
            case "restart":
                publisher.restart()
                lagging = []
                books.catch_up()  # the connection broke and came back
            case _:
                books.catch_up(drop)
    for batch in lagging:
        books.live(*batch)
    books.catch_up()
    whole_life = [life(str(publisher.name), seq) for seq in range(publisher.next_seq)]
    assert books.applied == whole_life[len(whole_life) - len(books.applied) :]
    assert len(books.applied) >= len(publisher.buffer)


@pytest.mark.parametrize("seq", [0, 1, 10])
def test_positions_of_an_empty_epoch(seq: int) -> None:
    stream = follow(*range(seq))
    stream.begin_epoch()
    assert stream.position == START
