"""An engine that publishes over ZMQ, and replicas that follow it together through a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import zmq
import zmq.asyncio

from gateway.errors import StoreError
from gateway.events.balance import Balance
from gateway.events.follower import Follower
from gateway.events.ports import Source
from gateway.events.share import Share
from gateway.events.shared import SharedFollower
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.shelf import load_scripts
from gateway.index.replication.writer import Terms
from gateway.kv.codec import encode_batch
from gateway.kv.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.store.connection import Store
from gateway.store.scripts import Script
from gateway.store.url import parse_store_url
from gateway.types import BlockKey, CacheScope, WorkerId

W = WorkerId("http://engine:8000")
TOKENS = tuple(range(16 * 256))
KEYS = block_keys(root_key(CacheScope("m")), pack_tokens(TOKENS))
TERMS = Terms(lease_s=1.0, renew_s=0.2)


class Engine:
    """One long prompt: stores its next blocks, removes its last. It answers replays like vLLM's publisher,
    unless it `repeats` nothing."""

    def __init__(self, context: zmq.asyncio.Context, *, repeats: bool = True) -> None:
        self._pub, self._router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self._pub, self._router)]
        events, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        self.source = Source(events, replay if repeats else None)
        self.held = 0
        self._log: list[bytes] = []
        self._task = asyncio.create_task(self._serve())

    async def store(self, blocks: int) -> None:
        first, last = self.held, self.held + blocks
        parent = first - 1 if first else None
        flat = TOKENS[first * 16 : last * 16]
        self.held = last
        await self._say(BlockStored(tuple(range(first, last)), parent, flat, 16))

    async def remove(self, blocks: int) -> None:
        self.held -= blocks
        await self._say(BlockRemoved(tuple(range(self.held, self.held + blocks))))

    def truth(self) -> dict[BlockKey, int]:
        return dict(Counter(KEYS[: self.held]))

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._pub.close(0)
        self._router.close(0)

    async def _say(self, *events: KVEvent) -> None:
        self._log.append(encode_batch(EventBatch(time.time(), events)))
        seq = len(self._log) - 1
        await self._pub.send_multipart([b"", seq.to_bytes(8, "big"), self._log[-1]])

    async def _serve(self) -> None:
        while True:
            who, _, start = await self._router.recv_multipart()
            for seq, payload in list(enumerate(self._log))[int.from_bytes(start, "big") :]:
                await self._router.send_multipart([who, b"", b"", seq.to_bytes(8, "big"), payload])
            await self._router.send_multipart([who, b"", b"", b"\xff" * 8, b""])


class Observer:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def loaded(self, worker: WorkerId, reason: str, blocks: int, seconds: float) -> None:
        self.heard.append(("loaded", reason))

    def refilled(self, worker: WorkerId, reason: str) -> None:
        self.heard.append(("refilled", reason))

    def took_over(self, worker: WorkerId) -> None:
        self.heard.append(("took over", ""))

    def fenced(self, worker: WorkerId) -> None:
        self.heard.append(("fenced", ""))


class Replica:
    """One gateway's part in it: an index, and a follower that shares."""

    def __init__(
        self, name: str, url: str, engine: Engine, context: zmq.asyncio.Context, epochs: Iterator[bytes],
        *, beside: bool = False, movable: bool = True,
    ) -> None:  # fmt: skip
        self.index = PrefixIndex()
        self.index.add_worker(W)
        self.store = Store(parse_store_url(url), timeout=1.0)
        self.observer = Observer()
        self.scripts = load_scripts()
        share = Share(
            self.store, self.scripts, name, self.index, self.observer, time.monotonic, lambda: 0.5,
            lambda: next(epochs), Balance(lambda: 0.5, beside=beside),
            TERMS,
        )  # fmt: skip
        self.follower = SharedFollower(
            W, "m", 16,
            lambda sink, snapshot: Follower(
                W, engine.source, sink=sink, make_ledger=sink.make_ledger, context=context, snapshot=snapshot,
                check_every=0.5,
            ),
            share,
            movable=movable,
        )  # fmt: skip
        self.task = asyncio.create_task(self.follower.run())

    @property
    def role(self) -> str:
        return self.follower.share_status().role

    def copies(self) -> dict[BlockKey, int]:
        return {key: self.index.copies(W, key) for key in self.index.held(W)}

    async def die(self) -> None:
        """kill -9: nothing more reaches Redis, the lease included."""
        await self.store.close()
        self.store.command = _dead  # type: ignore[method-assign]
        await self.leave()

    def stall(self) -> Callable[[], None]:
        """Nothing of it reaches Redis until what this gives is called: a process that is paused."""
        gate, command = asyncio.Event(), self.store.command

        async def late(*args: Any, **named: Any) -> Any:
            await gate.wait()
            return await command(*args, **named)

        self.store.command = late  # type: ignore[method-assign]
        return gate.set

    def lose_answer_to_acquire(self) -> None:
        """The next time it asks for the lease Redis gives it, and nobody hears of it."""
        script = self.store.script

        async def unheard(asked: Script, *args: Any, **named: Any) -> Any:
            answer = await script(asked, *args, **named)
            if asked is self.scripts.acquire:
                self.store.script = script  # type: ignore[method-assign]
                raise StoreError("the connection is gone")
            return answer

        self.store.script = unheard  # type: ignore[method-assign]

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def close(self) -> None:
        await self.leave()
        await self.store.close()


async def _dead(*args: object, **named: object) -> object:
    await asyncio.Event().wait()
    return None


class Group:
    """Two replicas and their engine."""

    def __init__(
        self, url: str, context: zmq.asyncio.Context, *, movable: bool = True, repeats: bool = True
    ) -> None:
        self._url = url
        self._movable = movable
        self._context = context
        self._epochs = (f"epoch-{number}".encode() for number in itertools.count())
        self._names = itertools.count()
        self.engine = Engine(context, repeats=repeats)
        self.replicas = [self._replica(), self._replica()]

    def _replica(self, *, beside: bool = False) -> Replica:
        return Replica(
            f"replica-{next(self._names)}", self._url, self.engine, self._context, self._epochs,
            beside=beside, movable=self._movable,
        )  # fmt: skip

    def join(self, *, beside: bool = False) -> Replica:
        """`beside` the engine, as an agent's follower is."""
        replica = self._replica(beside=beside)
        self.replicas.append(replica)
        return replica

    @property
    def writer(self) -> Replica:
        return next(r for r in self.replicas if r.role == "writer" and not r.task.done())

    @property
    def mirror(self) -> Replica:
        return next(r for r in self.replicas if r.role == "mirror" and not r.task.done())

    def shared(self) -> bool:
        """One writes, all others mirror."""
        roles = sorted(r.role for r in self.replicas if not r.task.done())
        return roles == ["mirror"] * (len(roles) - 1) + ["writer"]

    async def converged(self) -> None:
        """Until every index is what the engine holds, and so is Redis."""

        async def equal() -> bool:
            for replica in self.replicas:
                if replica.task.done() and not replica.task.cancelled():
                    replica.task.result()
            living = [r for r in self.replicas if not r.task.done()]
            truth = self.engine.truth()
            if not self.shared() or any(r.copies() != truth for r in living):
                return False
            shelf = living[0].follower.shelf
            return truth == {held.key: held.copies async for page in shelf.held() for held in page}

        await eventually(equal)

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.close()
        await self.engine.close()


async def eventually(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 90.0) -> None:
    async with asyncio.timeout(timeout):
        while True:
            try:
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
            except StoreError:
                pass
            await asyncio.sleep(0.05)


@asynccontextmanager
async def group(url: str, *, movable: bool = True, repeats: bool = True) -> AsyncIterator[Group]:
    context = zmq.asyncio.Context()
    running = Group(url, context, movable=movable, repeats=repeats)
    try:
        yield running
    finally:
        await running.close()
        context.term()
