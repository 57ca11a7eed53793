"""A TCP proxy that can stall: what a network partition looks like, connections open and nothing arriving."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StallingProxy:
    """Forwards to one port of this machine until `stall`; what arrived meanwhile goes on after `heal`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def stall(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def run(self, listening: threading.Event, stop: asyncio.Event) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(listening, stop))

    async def _serve(self, listening: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            await self._flowing.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            with contextlib.closing(back):
                ends = [
                    asyncio.ensure_future(self._pump(reader, back)),
                    asyncio.ensure_future(self._pump(there, writer)),
                ]
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for end in ends:
                        end.cancel()
                    await asyncio.gather(*ends, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            await self._flowing.wait()
            sink.write(data)
            await sink.drain()


@contextmanager
def stalling_proxy(target: int) -> Iterator[StallingProxy]:
    proxy, listening, stop = StallingProxy(target), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=proxy.run, args=(listening, stop))
    thread.start()
    try:
        assert listening.wait(30)
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(stop.set)
        thread.join()
