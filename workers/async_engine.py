"""The engine on a thread of its own, its tokens as async streams: the event loop never waits for a step."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TypeAlias

from workers.engine import Engine, EngineStats
from workers.types import EngineRequest, TokenOutput

logger = logging.getLogger(__name__)

Command: TypeAlias = Callable[[], object]


class EngineDead(Exception):
    """The engine has stopped, for good: its runner failed (see ``__cause__``), or it was closed."""

    def again(self) -> EngineDead:
        """A fresh one for each who must hear it: a raised exception collects its own traceback."""
        copy = EngineDead(*self.args)
        copy.__cause__ = self.__cause__
        return copy


class AsyncEngine:
    """`async with AsyncEngine(engine) as serving: async for output in serving.generate(request): …`

    The engine belongs to the thread: what the event loop wants of it goes there as a command, and outputs
    come back once a step. Use it from one event loop, the one it was started in.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._streams: dict[str, asyncio.Queue[TokenOutput | EngineDead]] = {}
        self._replies: set[asyncio.Future[bool]] = set()
        self._ids = itertools.count()
        self._dead: EngineDead | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def __repr__(self) -> str:
        return f"<AsyncEngine {len(self._streams)} streams{'' if self.healthy else ', dead'}>"

    async def __aenter__(self) -> AsyncEngine:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def healthy(self) -> bool:
        return self._dead is None

    @property
    def engine(self) -> Engine:
        """For what never changes (config, runner); everything else belongs to the thread."""
        return self._engine

    def start(self) -> None:
        """Must be called in the event loop that will use it."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Stop after the step in progress. Streams still open end with EngineDead."""
        if self._thread.is_alive():
            self._commands.put(None)
            await asyncio.to_thread(self._thread.join)
        self._die(EngineDead("the engine was closed"))

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenOutput, None]:
        """Tokens as they come; the last output has a finish reason. Ids of requests need not be unique.

        Raises RequestRefused at once for what can never be served, EngineDead when the engine fails. Leaving
        early, by cancellation or `aclose`, aborts the sequence before the engine's next step.
        """
        self._engine.check(request)
        if self._dead is not None:
            raise self._dead.again()
        # two clients may send one id, and an id may come back before its abort is through
        name = f"{request.request_id}#{next(self._ids)}"
        stream = self._streams[name] = asyncio.Queue()
        self._commands.put(partial(self._engine.add, replace(request, request_id=name)))
        ended = False
        try:
            while not ended:
                output = await stream.get()
                if isinstance(output, EngineDead):
                    ended = True
                    raise output
                ended = output.finish_reason is not None
                yield replace(output, request_id=request.request_id)
        finally:
            del self._streams[name]
            if not ended:
                self._commands.put(partial(self._engine.abort, name))

    async def reset_prefix_cache(self) -> bool:
        """False while the engine is busy. Raises EngineDead."""
        if self._dead is not None:
            raise self._dead.again()
        reply: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._replies.add(reply)
        self._commands.put(partial(self._answer, reply))
        try:
            return await reply
        finally:
            self._replies.discard(reply)

    def stats(self) -> EngineStats:
        """A moment's view, read from outside the thread: each figure is right, not all of the same step."""
        return self._engine.stats()

    # -- on the engine's thread

    def _run(self) -> None:
        try:
            while self._obey():
                outputs = self._engine.step()
                if outputs:
                    self._post(partial(self._deliver, outputs))
        except Exception as error:
            logger.exception("the engine failed and will not serve any more")
            dead = EngineDead(f"the engine failed: {error}")
            dead.__cause__ = error
            self._post(partial(self._die, dead))

    def _obey(self) -> bool:
        """Carry out what was asked for, waiting while there is no work; False to end."""
        while not self._engine.has_work or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _answer(self, reply: asyncio.Future[bool]) -> None:
        done = self._engine.reset_prefix_cache()

        def tell() -> None:
            if not reply.done():
                reply.set_result(done)

        self._post(tell)

    def _post(self, call: Command) -> None:
        # a closed loop has nobody left to tell
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)

    # -- on the event loop

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put_nowait(output)

    def _die(self, dead: EngineDead) -> None:
        if self._dead is not None:
            return
        self._dead = dead
        for stream in self._streams.values():
            stream.put_nowait(dead.again())
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(dead.again())
