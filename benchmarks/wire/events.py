"""Events of a busy fleet: as many blocks as an index is asked to hold, and then a steady stream of changes.

    python -m benchmarks.wire.events --ports 9101,9102 --blocks 1000000 --rate 10000

Binds one publisher a port, as engines do, waits for a subscriber on each, tells of `--blocks` blocks in all,
and from then on stores `--rate` blocks a second and removes as many of the oldest.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator
from random import Random

import zmq

from benchmarks.ending import in_one_line
from gateway.kv.codec import encode_batch
from gateway.kv.events import BlockRemoved, BlockStored, EventBatch

BLOCK = 16
RUN = 32
"""Blocks of one event: a prompt of 512 tokens."""
FILL_RATE = 60_000
"""Blocks a second while the index is being filled: about a third of what it can apply."""
_TICK = 0.01


class Told:
    """One engine's blocks, oldest first."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._tokens = tuple(self._random.randrange(150_000) for _ in range(64 * RUN * BLOCK))
        self._held: deque[tuple[int, ...]] = deque()

    def store(self) -> BlockStored:
        """A prompt that was never seen: its first token's place and its first block make it its own."""
        names = tuple(self._random.getrandbits(63) for _ in range(RUN))
        at = self._random.randrange(len(self._tokens) - RUN * BLOCK)
        tokens = tuple(name % 150_000 for name in names[:BLOCK]) + self._tokens[at + BLOCK : at + RUN * BLOCK]
        self._held.append(names)
        return BlockStored(names, None, tokens, BLOCK)

    def remove(self) -> list[BlockRemoved]:
        """The oldest prompt, as an engine gives it up: from its end, block by block."""
        return [BlockRemoved((name,)) for name in reversed(self._held.popleft())]


def filling(told: Told, blocks: int) -> Iterator[EventBatch]:
    for _ in range(blocks // RUN):
        yield EventBatch(0.0, (told.store(),))


def changing(told: Told) -> Iterator[EventBatch]:
    while True:
        yield EventBatch(0.0, (*told.remove(), told.store()))


def publish(sockets: list[zmq.Socket[bytes]], blocks: int, rate: float) -> None:
    for socket in sockets:
        socket.recv()  # the subscription
    told = [Told(n) for n in range(len(sockets))]
    each = blocks // len(sockets)
    sequence = 0
    for phase, pace in (
        ([filling(one, each) for one in told], FILL_RATE),
        ([changing(one) for one in told], rate),
    ):
        due = time.monotonic()
        for batches in zip(*phase, strict=True):
            for socket, batch in zip(sockets, batches, strict=True):
                socket.send_multipart([b"", sequence.to_bytes(8, "big"), encode_batch(batch)])
            sequence += 1
            due += RUN * len(sockets) / pace
            if (wait := due - time.monotonic()) > _TICK:
                time.sleep(wait)


@in_one_line("it published until now")
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ports", required=True)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=10_000)
    args = parser.parse_args()
    with zmq.Context() as context:
        sockets = []
        for port in args.ports.split(","):
            socket = context.socket(zmq.XPUB)
            socket.setsockopt(zmq.SNDHWM, 0)  # what is not taken yet waits here: a gap would begin anew
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"tcp://127.0.0.1:{port}")
            sockets.append(socket)
        try:
            publish(sockets, args.blocks, args.rate)
        finally:
            for socket in sockets:
                socket.close()


if __name__ == "__main__":
    main()
