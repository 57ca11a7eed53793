"""The ZMQ side of following: a subscription that knows when its peer changed, and replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

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


class ReplayTimeout(Exception):
    """The replay endpoint fell silent."""


def parse_frames(frames: list[bytes]) -> tuple[int, bytes] | None:
    """Sequence number and payload, the last two frames in every release; None where they are not there."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]


class Subscription:
    """A SUB socket and the monitor of its connection. Use within `subscribe`."""

    def __init__(self, sub: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        self._sub = sub
        self._monitor = monitor
        self._poller = zmq.asyncio.Poller()
        self._poller.register(sub, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)

    async def wait(self, timeout: float) -> bool:
        """Until there is something to read; False after `timeout` seconds."""
        return bool(await self._poller.poll(int(timeout * 1000)))

    async def connections(self) -> AsyncIterator[bool]:
        """What happened to the connection since the last look: True it came up, False it went down."""
        while _readable(self._monitor):
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                yield True
            elif event == zmq.EVENT_DISCONNECTED:
                yield False

    async def next(self) -> list[bytes] | None:
        """The next message; None where there is none now, or where the connection must be looked at first."""
        if _readable(self._monitor) or not _readable(self._sub):
            return None
        return await self._sub.recv_multipart()


@contextmanager
def subscribe(context: zmq.asyncio.Context, source: Source) -> Iterator[Subscription]:
    """Raises ConfigError for an endpoint that can't be one."""
    sub = context.socket(zmq.SUB)
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
            yield Subscription(sub, monitor)
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


def _readable(socket: zmq.asyncio.Socket) -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)


def _connect(socket: zmq.asyncio.Socket, endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"can't connect to {endpoint!r}, which should be a ZMQ endpoint: {error}"
        ) from error
