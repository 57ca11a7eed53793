"""KV events on the wire as vLLM sends them: a PUB socket for the living stream, a ROUTER for what was missed.

    live    [topic, sequence, payload]
    replay  asked [b"", first wanted sequence], answered [b"", topic, sequence, payload] for each batch that
            is still kept, then [b"", b"", ff × 8, b""]

Sequences are 8 bytes big-endian, from 0 in each process, one more a batch.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from typing import Protocol

import zmq

from gateway.kv.codec import encode_batch
from gateway.kv.events import EventBatch

logger = logging.getLogger(__name__)

END_OF_REPLAY = b"\xff" * 8
KEPT_BATCHES = 10_000
"""As vLLM's `buffer_steps`; older batches cannot be had any more."""
MAX_QUEUED = 100_000
_LINGER_MS = 1_000


class Publisher(Protocol):
    def publish(self, batch: EventBatch) -> None:
        """Never blocks, never raises."""
        ...

    def close(self) -> None: ...


class NullPublisher:
    """For engines that tell nobody."""

    def publish(self, batch: EventBatch) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class ZmqPublisher:
    """Binds in the constructor (raises zmq.ZMQError where an address is taken), then works on its own thread.

    `replay_endpoint` None: no replay. Should the thread fall `max_queued` batches behind, newer ones are
    dropped with their sequence numbers, so that followers see the gap.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = "kv-events",
        kept_batches: int = KEPT_BATCHES,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._topic = topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=kept_batches)
        self._queue: deque[tuple[int, EventBatch]] = deque()
        self._max_queued = max_queued
        self._next_sequence = 0
        self._closing = False
        self._context = zmq.Context()
        try:
            self._pub = self._bind(zmq.PUB, endpoint, high_water_mark=MAX_QUEUED)
            self._replay = (
                # a ROUTER silently drops what exceeds its mark: room for a whole replay
                self._bind(zmq.ROUTER, replay_endpoint, high_water_mark=kept_batches + 1)
                if replay_endpoint is not None
                else None
            )
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        # zmq sockets belong to one thread; a byte through this pair wakes the one that owns them
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    def publish(self, batch: EventBatch) -> None:
        """Call it from one thread only: the order of calls is the order of sequences."""
        sequence = self._next_sequence
        self._next_sequence += 1
        if len(self._queue) >= self._max_queued:
            logger.warning("KV event batch %d dropped: %d are queued", sequence, len(self._queue))
            return
        self._queue.append((sequence, batch))
        self._ring()

    def close(self) -> None:
        """Send what is queued, then end. Twice is fine."""
        if self._closing:
            return
        self._closing = True
        self._ring()
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _bind(self, kind: int, endpoint: str, *, high_water_mark: int) -> zmq.Socket[bytes]:
        bound: zmq.Socket[bytes] = self._context.socket(kind)
        bound.set_hwm(high_water_mark)
        bound.linger = _LINGER_MS
        bound.bind(endpoint)
        return bound

    def _ring(self) -> None:
        try:
            self._wake.send(b"\0")
        except BlockingIOError:
            return  # the pair is full of rings already

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._context.destroy()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll())
            if self._woken.fileno() in ready:
                self._hear()
            self._send_queued()
            if self._replay is not None and self._replay in ready:
                self._serve_replay(self._replay)
        self._send_queued()

    def _hear(self) -> None:
        try:
            self._woken.recv(4096)
        except BlockingIOError:
            return

    def _send_queued(self) -> None:
        while self._queue:
            sequence, batch = self._queue.popleft()
            frame = sequence.to_bytes(8, "big")
            payload = encode_batch(batch)
            self._pub.send_multipart((self._topic, frame, payload))
            self._kept.append((frame, payload))

    def _serve_replay(self, replay: zmq.Socket[bytes]) -> None:
        request = replay.recv_multipart()
        if len(request) != 3 or len(request[2]) != 8:
            logger.warning("replay request of %d frames ignored", len(request))
            return
        client, first = request[0], request[2]
        for frame, payload in self._kept:
            # big-endian of one length: bytes compare as the numbers do
            if frame >= first:
                replay.send_multipart((client, b"", self._topic, frame, payload))
        replay.send_multipart((client, b"", b"", END_OF_REPLAY, b""))
