"""The ZMQ side of following: a subscription that knows when its peer changed, and replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from gateway.errors import ConfigError
from gateway.events.ports import Source

END_OF_REPLAY = b"\xff" * 8
QUEUE = 10_000
"""Batches that may wait in a socket. A publisher whose subscriber is full drops, and is replayed later."""
HEARTBEAT = 5_000
HEARTBEAT_TIMEOUT = 15_000
RECONNECT = 100
RECONNECT_MAX = 2_000
# all four in milliseconds
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""As plain numbers: members of an enum take some ten calls to be joined."""


class ReplayTimeout(Exception):
    """The replay endpoint fell silent."""


def parse_frames(frames: list[bytes]) -> tuple[int, bytes] | None:
    """Sequence number and payload, the last two frames in every release; None where they are not there."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]


class Subscription:
    """A SUB socket and the monitor of its connection. Use within `subscribe`.

    An engine says something at each of its steps, so a message must cost little: sockets are plain ones, read
    as long as there is something, and the loop is told of their descriptors once, not for each wait.
    """

    def __init__(self, sub: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        self._sub = sub
        self._monitor = monitor
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._descriptors = (sub.FD, monitor.FD)
        for descriptor in self._descriptors:
            self._loop.add_reader(descriptor, self._on_signal)

    def close(self) -> None:
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        if self._timer is not None:
            self._timer.cancel()

    async def wait(self, timeout: float) -> bool:
        """Until there is something to read; False after `timeout` seconds."""
        if self._something():
            return True
        self._waiter = self._loop.create_future()
        self._due = self._loop.time() + timeout
        if self._timer is None:
            self._timer = self._loop.call_later(timeout, self._on_time)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def connections(self) -> Iterator[bool]:
        """What happened to the connection since the last look: True it came up, False it went down."""
        while _readable(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                yield True
            elif event == zmq.EVENT_DISCONNECTED:
                yield False

    def next(self) -> list[bytes] | None:
        """The next message; None where there is none now, or where the connection must be looked at first."""
        if _readable(self._monitor) or not _readable(self._sub):
            return None
        frame = self._sub.recv(zmq.NOBLOCK, copy=False)
        frames = [frame.bytes]
        while frame.more:  # which a frame knows, and recv_multipart asks the socket for
            frame = self._sub.recv(zmq.NOBLOCK, copy=False)
            frames.append(frame.bytes)
        return frames

    def _something(self) -> bool:
        # each is asked: a descriptor stays readable until its socket has been
        said, changed = _readable(self._sub), _readable(self._monitor)
        return said or changed

    def _on_signal(self) -> None:
        """ZMQ has news of some kind. Who isn't waiting looks for itself before the next wait."""
        if self._something() and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def _on_time(self) -> None:
        """One timer for all waits: it looks whether this one has lasted so long."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left = self._due - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._on_time)
        else:
            self._waiter.set_result(False)


@contextmanager
def subscribe(context: zmq.Context[Any], source: Source) -> Iterator[Subscription]:
    """Raises ConfigError for an endpoint that can't be one."""
    plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
    sub = plain.socket(zmq.SUB)
    try:
        sub.set(zmq.LINGER, 0)
        sub.set(zmq.RCVHWM, QUEUE)
        sub.set(zmq.IPV6, 1)
        sub.set(zmq.HEARTBEAT_IVL, HEARTBEAT)
        sub.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT)
        sub.set(zmq.RECONNECT_IVL, RECONNECT)
        sub.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX)
        sub.set(zmq.SUBSCRIBE, source.topic.encode())
        monitor = sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            _connect(sub, source.events)
            with closing(Subscription(sub, monitor)) as subscription:
                yield subscription
        finally:
            sub.disable_monitor()
            monitor.close()
    finally:
        sub.close()


async def replay(
    context: zmq.asyncio.Context, endpoint: str, start: int, timeout: float
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Batches from `start` on that the publisher still has. Raises ReplayTimeout after `timeout` seconds
    without a reply. A socket for each replay: late replies to a given-up one die with it."""
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.RCVHWM, QUEUE)
        dealer.set(zmq.IPV6, 1)
        _connect(dealer, endpoint)
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            try:
                async with asyncio.timeout(timeout):
                    frames = await dealer.recv_multipart()
            except TimeoutError:
                raise ReplayTimeout(endpoint) from None
            if len(frames) >= 2 and frames[-2] == END_OF_REPLAY:
                return
            reply = parse_frames(frames)
            if reply is not None:
                yield reply
    finally:
        dealer.close()


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.get(_EVENTS)) & _POLLIN)


def _connect(socket: zmq.Socket[Any], endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"can't connect to {endpoint!r}, which should be a ZMQ endpoint: {error}"
        ) from error
