"""A bad day in short: engines that go wrong in every way and restart, clients that leave at random.

The gateway is a process of its own; engines and clients live in the test's loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Process
from tests.faults import (
    DONE,
    SSE_HEAD,
    FaultyEngine,
    Script,
    Turn,
    answers,
    chunk,
    hangs,
    head,
    raw,
    streams,
    streams_for_ever,
    token,
    usage_chunk,
)

GOOD = [token("a"), token("b"), usage_chunk(100, 2, 0), DONE]
WHOLE = answers(b'{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":1}}')
FAULTS: list[Script] = [
    streams(GOOD[:1], end=False, then="reset"),
    streams(GOOD[:2], end=False, then="close"),
    streams_for_ever(token("x")),
    raw(then="reset"),
    raw(SSE_HEAD, then="close"),
    raw(SSE_HEAD, chunk(b'data: {"half'), then="close"),
    raw(head(200, "content-length: 50", "content-type: audio/wav"), b"RIFF", then="reset"),
    raw(b"nonsense\r\n\r\n", then="hang"),
    hangs(),
    answers(b"{}", 429, "retry-after: 1"),
    answers(b"<html>", 503, content_type="text/html"),
    answers(b"{}", 400),
]
SETTLED = 0.01
"""A round of the warm-up that adds no more than this share to the memory adds next to nothing."""
MAX_ROUNDS = 20
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings")


@dataclass
class Moody:
    """Answers well most of the time."""

    rng: Random
    share_of_faults: float = 0.25

    async def __call__(self, turn: Turn) -> None:
        if self.rng.random() < self.share_of_faults:
            await self.rng.choice(FAULTS)(turn)
        else:
            await (streams(GOOD) if b'"stream": true' in turn.seen.body else WHOLE)(turn)


@dataclass
class Standing:
    """What a process holds when nobody asks anything of it."""

    rss: int
    """Bytes."""
    fds: int
    """But for those of connections to engines."""
    tasks: int
    to_engines: int
    """Connections that wait for the next request or look: one an engine stays, as long as it is looked at."""


def gauges(admin: str) -> dict[str, float]:
    """Sums of the live gauges, by name."""
    text = httpx.get(admin + "/metrics", trust_env=False, timeout=20).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.type == "gauge":
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


IN_FLIGHT = (
    "gateway_inflight_requests",
    "gateway_waiting_tokens",
    "gateway_decoding_tokens",
    "gateway_queue_requests",
)


def standing(process: Process, admin: str, engines: list[FaultyEngine]) -> Standing:
    ps = psutil.Process(process.pid)
    tasks = int(gauges(admin)["gateway_tasks"])
    ports = {int(engine.url.rpartition(":")[2]) for engine in engines}
    to_engines, fds = -1, 0
    while to_engines != (now := sum(bool(c.raddr and c.raddr.port in ports) for c in ps.net_connections())):
        to_engines, fds = now, ps.num_fds()  # a look may begin or end in between
    return Standing(ps.memory_info().rss, fds - to_engines, tasks, to_engines)


async def until(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        await asyncio.sleep(0.1)


async def crowd(port: int, seconds: float, rng: Random, *, clients: int = 24) -> int:
    """So many clients ask one thing after the other, and leave when they like. Requests sent."""
    end = time.monotonic() + seconds
    sent = 0

    async def one() -> None:
        nonlocal sent
        while time.monotonic() < end:
            sent += 1
            await _ask(port, rng)

    await asyncio.gather(*(one() for _ in range(clients)))
    return sent


async def _ask(port: int, rng: Random) -> None:
    path = rng.choice(PATHS)
    text = f"conversation {rng.randrange(20)} " * 20
    messages = [{"role": "user", "content": text}]
    body = json.dumps(
        {"model": "m", "messages": messages, "input": text, "max_tokens": 5, "stream": rng.random() < 0.7}
    ).encode()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
        % (path.encode(), len(body), body)
    )
    try:
        # some leave before the first byte, some inside the answer, some stay
        async with asyncio.timeout(rng.choice([0.001, 0.02, 0.1, 5.0, 5.0])):
            await reader.read()
            while await reader.read(65536):
                pass
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()


async def restarts(engines: list[FaultyEngine], seconds: float, every: float, rng: Random) -> int:
    """One engine after the other dies with all it serves, and comes back on its port. How many times."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() + every < end:
        await asyncio.sleep(every)
        engine = rng.choice(engines)
        await engine.__aexit__(None, None, None)
        await asyncio.sleep(min(1.0, every / 2))
        await engine.__aenter__()
        count += 1
    return count


async def soak(
    start: Callable[[list[str]], tuple[Process, int, str]], *, seconds: float, seed: int = 1
) -> dict[str, float]:
    """`start` runs a gateway before these workers and tells its process, public port and admin URL. Asserts
    that nothing is left behind; returns what was seen, for a report."""
    rng = Random(seed)
    engines = [FaultyEngine(Moody(rng), model="m") for _ in range(3)]
    for engine in engines:
        await engine.__aenter__()
    try:
        process, port, admin = await asyncio.to_thread(start, [engine.url for engine in engines])

        def idle() -> bool:
            now = gauges(admin)
            return all(now.get(name, 0.0) == 0.0 for name in IN_FLIGHT)

        fresh = await asyncio.to_thread(standing, process, admin, engines)

        async def bad_day(seconds: float, every: float) -> tuple[int, int]:
            found = await asyncio.gather(crowd(port, seconds, rng), restarts(engines, seconds, every, rng))
            await until(idle, "gauges at zero")
            return found

        # code, buffers, bounded caches and the room that a rush needs are there once they were used, which
        # takes the longer the slower the machine: memory is compared from where two rounds in turn add next
        # to nothing
        warm, rounds, settled = fresh, 0, 0
        length = min(15.0, seconds / 6)
        while settled < 2:
            assert rounds < MAX_ROUNDS, f"memory still grows after {rounds} rounds: {warm.rss} bytes"
            await bad_day(length, length / 4)
            last, warm = warm.rss, await asyncio.to_thread(standing, process, admin, engines)
            rounds, settled = rounds + 1, settled + 1 if warm.rss <= last * (1 + SETTLED) else 0
        sent, restarted = await bad_day(seconds, max(2.0, seconds / 20))

        def nothing_left() -> bool:
            now = standing(process, admin, engines)
            mine = now.fds <= fresh.fds and now.to_engines <= len(engines)
            return mine and now.tasks <= fresh.tasks + len(engines)

        await until(nothing_left, "sockets and tasks as before")
        after = await asyncio.to_thread(standing, process, admin, engines)
        log = process.output()
        for trouble in ("Traceback", "never retrieved", "never awaited", "internal error"):
            assert trouble not in log, log[-4000:]
        assert after.rss <= warm.rss * 1.05, f"{warm.rss} → {after.rss} bytes"
        return {
            "requests": sent, "restarts": restarted, "rss_warm": warm.rss, "rss_after": after.rss,
            "fds_fresh": fresh.fds, "fds_after": after.fds, "to_engines_fresh": fresh.to_engines,
            "to_engines_after": after.to_engines, "tasks_fresh": fresh.tasks,
            "tasks_after": after.tasks,
        }  # fmt: skip
    finally:
        for engine in engines:
            await engine.__aexit__(None, None, None)
