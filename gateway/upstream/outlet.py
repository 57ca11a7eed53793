"""The client's side of an answer, fed from callbacks: what it is, and the one that speaks ASGI."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, MutableMapping
from typing import Any, Protocol, TypeAlias

from gateway.upstream.wire import Flow

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]


class ClientGone(Exception):
    """The server says that nobody takes the answer any more."""


class Outlet(Protocol):
    """Takes an answer in order. Nothing waits: where the client is slow, the worker's bytes are held back."""

    @property
    def started(self) -> bool:
        """The head is on its way: the answer's status can't change any more."""
        ...

    @property
    def ended(self) -> bool:
        """So is the last byte, or it waits for the client to take it."""
        ...

    @property
    def blocked(self) -> bool:
        """The client is behind: something waits to be sent."""
        ...

    @property
    def framed(self) -> Callable[[bytes], object] | None:
        """Takes whole chunks of an answer whose head is out, framed as they are; until `flow.resume` is
        called, for the client may have gone. None where the answer goes out in another form, or none does."""
        ...

    def attach(self, flow: Flow | None) -> None:
        """Whose bytes to hold back while the client is slow; None when that answer has ended."""
        ...

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...

    def body(self, data: bytes, *, last: bool) -> None: ...

    async def drained(self) -> None:
        """Until the client has taken all. Raises ClientGone."""
        ...

    def close(self) -> None:
        """What the client has not taken is dropped."""
        ...


class _Rest:
    """What is left of a coroutine that has yielded once: awaiting it goes on from there."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], yielded: Any) -> None:
        self._coroutine = coroutine
        self._yielded = yielded

    def __await__(self) -> Generator[Any, Any, None]:
        yielded = self._yielded
        while True:
            try:
                try:
                    value = yield yielded
                except BaseException as error:  # noqa: BLE001 - handed on, cancellation too
                    yielded = self._coroutine.throw(error)
                else:
                    yielded = self._coroutine.send(value)
            except StopIteration:
                return


class AsgiOutlet:
    """Sends messages in order, each at once where the client keeps up: `send` is then a coroutine that ends
    without waiting, and is run on the spot, with no task and no turn of the loop in between. Where it does
    wait (the client is slow), a task takes over, and the worker's bytes are held back until it is through.

    So `send` must not ask which task it runs in until it waits; uvicorn's does not, nor do plain wrappers.
    """

    framed: Callable[[bytes], object] | None = None
    """The server frames what it sends."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[Message] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._flow: Flow | None = None
        self.started = False
        """The head has gone out: the answer's status can't change any more."""
        self.ended = False
        """So has the last byte, or it waits for the client to take it."""

    def attach(self, flow: Flow | None) -> None:
        """Whose bytes to hold back while the client is slow; None when that answer has ended."""
        self._flow = flow
        if flow is not None and self._draining is not None:
            flow.pause()

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        self._push({"type": "http.response.start", "status": status, "headers": headers})

    def body(self, data: bytes, *, last: bool) -> None:
        if data or last:
            self.ended = last
            self._push({"type": "http.response.body", "body": data, "more_body": not last})

    def _push(self, message: Message) -> None:
        if self._draining is not None:
            if self._draining.done():
                self._raise(self._draining)
            self._waiting.append(message)
            return
        coroutine = self._send(message)
        try:
            yielded = coroutine.send(None)
        except StopIteration:
            return
        except OSError as error:
            raise ClientGone from error
        if self._flow is not None:
            self._flow.pause()
        self._draining = asyncio.get_running_loop().create_task(self._drain(_Rest(coroutine, yielded)))

    async def _drain(self, rest: _Rest) -> None:
        try:
            await rest
            while self._waiting:
                await self._send(self._waiting.popleft())
        except OSError as error:
            raise ClientGone from error
        else:
            self._draining = None
        finally:
            if self._flow is not None:
                self._flow.resume()

    @staticmethod
    def _raise(task: asyncio.Task[None]) -> None:
        raise task.exception() or ClientGone

    @property
    def blocked(self) -> bool:
        """The client is behind: something waits to be sent."""
        return self._draining is not None

    async def drained(self) -> None:
        """Until the client has taken all. Raises ClientGone."""
        if self._draining is not None:
            await asyncio.shield(self._draining)

    def close(self) -> None:
        """What the client has not taken is dropped."""
        self._waiting.clear()
        self._flow = None
        if self._draining is not None and not self._draining.cancel():
            # it had failed already, and that has been told by whoever noticed
            self._draining.cancelled() or self._draining.exception()
        self._draining = None
