"""KV events over real sockets, spoken to as a vLLM client would."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import zmq

from gateway.kv.codec import decode_batch
from gateway.kv.events import BlockRemoved, BlockStored, EventBatch
from workers.publisher import NullPublisher, ZmqPublisher

TIMEOUT_MS = 20_000
END = b"\xff" * 8


def batch(number: int) -> EventBatch:
    return EventBatch(
        ts=float(number), events=(BlockRemoved(block_hashes=(number,), group_idx=0),), dp_rank=0
    )


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


Address = tuple[str, str]


@pytest.fixture
def addresses(free_port: Callable[[], int]) -> Address:
    return f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"


def subscribed(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, publisher: ZmqPublisher
) -> zmq.Socket[bytes]:
    """A subscriber that is known to hear: the first batches may be lost to a slow join, as on any PUB."""
    sub = context.socket(zmq.SUB)
    sub.rcvtimeo = 50
    sub.subscribe(b"")
    sub.connect(endpoint)
    for _ in range(200):
        publisher.publish(batch(0))
        try:
            last = int.from_bytes(sub.recv_multipart()[1], "big")
        except zmq.Again:
            continue
        sub.rcvtimeo = TIMEOUT_MS
        while last < publisher.next_sequence - 1:
            last = int.from_bytes(sub.recv_multipart()[1], "big")
        return sub
    raise AssertionError("nothing was heard")


def replayed(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, start: int
) -> tuple[list[list[bytes]], list[bytes]]:
    """All answers to a request for `start`, and the end marker."""
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = TIMEOUT_MS
        dealer.connect(endpoint)
        dealer.send_multipart((b"", start.to_bytes(8, "big")))
        answers = []
        while (answer := dealer.recv_multipart())[-2] != END:
            answers.append(answer)
        return answers, answer


def sequences(answers: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(answer[-2], "big") for answer in answers]


def test_a_batch_is_three_frames_with_rising_sequences(
    context: zmq.Context[zmq.Socket[bytes]], addresses: Address
) -> None:
    publisher = ZmqPublisher(addresses[0], topic="kv-events")
    sub = subscribed(context, addresses[0], publisher)
    first = publisher.next_sequence
    stored = EventBatch(
        ts=2.5,
        events=(
            BlockStored((2**64 - 1, 5), None, tuple(range(32)), 16, extra_keys=(("s",), None), group_idx=0),
        ),
        dp_rank=0,
    )
    publisher.publish(stored)
    publisher.publish(batch(1))
    one, two = sub.recv_multipart(), sub.recv_multipart()
    publisher.close()
    sub.close()
    assert (one[0], one[1]) == (b"kv-events", first.to_bytes(8, "big"))
    assert decode_batch(one[2]) == stored
    assert two[1] == (first + 1).to_bytes(8, "big")


def test_replay_gives_from_where_it_is_asked_and_an_end_marker(
    context: zmq.Context[zmq.Socket[bytes]], addresses: Address
) -> None:
    publisher = ZmqPublisher(*addresses, topic="t")
    for number in range(10):
        publisher.publish(batch(number))
    whole, end = replayed(context, addresses[1], 0)
    middle, _ = replayed(context, addresses[1], 7)
    beyond, beyond_end = replayed(context, addresses[1], 10)
    publisher.close()
    assert sequences(whole) == list(range(10))
    assert [answer[:2] for answer in whole] == [[b"", b"t"]] * 10
    assert [decode_batch(answer[3]).ts for answer in whole] == [float(n) for n in range(10)]
    assert end == [b"", b"", END, b""]
    assert sequences(middle) == [7, 8, 9]
    assert (beyond, beyond_end) == ([], [b"", b"", END, b""])


def test_what_is_older_than_the_buffer_is_gone(
    context: zmq.Context[zmq.Socket[bytes]], addresses: Address
) -> None:
    publisher = ZmqPublisher(*addresses, kept_batches=4)
    for number in range(10):
        publisher.publish(batch(number))
    answers, _ = replayed(context, addresses[1], 2)
    publisher.close()
    assert sequences(answers) == [6, 7, 8, 9]


def test_a_whole_buffer_is_replayed_without_loss(
    context: zmq.Context[zmq.Socket[bytes]], addresses: Address
) -> None:
    publisher = ZmqPublisher(*addresses, kept_batches=5_000)
    for number in range(5_000):
        publisher.publish(batch(number))
    answers, _ = replayed(context, addresses[1], 0)
    publisher.close()
    assert sequences(answers) == list(range(5_000))


def test_a_live_gap_is_filled_by_replay(context: zmq.Context[zmq.Socket[bytes]], addresses: Address) -> None:
    publisher = ZmqPublisher(*addresses)
    for number in range(5):
        publisher.publish(batch(number))
    sub = subscribed(context, addresses[0], publisher)
    publisher.publish(batch(77))
    live = sub.recv_multipart()
    answers, _ = replayed(context, addresses[1], 0)
    publisher.close()
    sub.close()
    assert sequences(answers) == list(range(publisher.next_sequence))
    assert answers[-1][1:] == live


def test_a_malformed_replay_request_is_ignored(
    context: zmq.Context[zmq.Socket[bytes]], addresses: Address
) -> None:
    publisher = ZmqPublisher(*addresses)
    publisher.publish(batch(0))
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = TIMEOUT_MS
        dealer.connect(addresses[1])
        dealer.send_multipart((b"", b"short"))
        dealer.send_multipart((b"only one",))
        dealer.send_multipart((b"", (0).to_bytes(8, "big")))
        assert dealer.recv_multipart()[2] == (0).to_bytes(8, "big")
        assert dealer.recv_multipart()[2] == END
    publisher.close()


def test_a_taken_address_is_said_at_once(addresses: Address) -> None:
    publisher = ZmqPublisher(*addresses)
    with pytest.raises(zmq.ZMQError):
        ZmqPublisher(addresses[0])
    with pytest.raises(zmq.ZMQError):
        ZmqPublisher("tcp://127.0.0.1:*", addresses[1])
    publisher.close()
    publisher.close()
    again = ZmqPublisher(*addresses)
    again.close()


def test_what_overflows_the_queue_leaves_a_gap(
    context: zmq.Context[zmq.Socket[bytes]], addresses: Address, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = ZmqPublisher(*addresses, max_queued=0)
    publisher.publish(batch(0))
    assert publisher.next_sequence == 1
    assert "batch 0 dropped" in caplog.text
    assert replayed(context, addresses[1], 0)[0] == []
    publisher.close()


def test_the_null_publisher_takes_everything() -> None:
    publisher = NullPublisher()
    publisher.publish(batch(0))
    publisher.close()
