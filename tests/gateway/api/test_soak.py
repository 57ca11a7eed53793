"""A crowd on a bad day: faults of every kind, clients that leave at random. Nothing may be left behind."""

from __future__ import annotations

import asyncio
import json
import logging
from random import Random

import pytest

from gateway.routing.route import Outcome
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
from tests.gateway.api.rig import fast_timeouts, serving

pytestmark = pytest.mark.anyio

GOOD = [token("a"), token("b"), usage_chunk(10, 2, 0), DONE]
MOODS: list[Script] = [
    answers(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'),
    streams(GOOD),
    streams(GOOD[:1], end=False, then="reset"),
    streams(GOOD[:2], end=False, then="close"),
    streams_for_ever(token("x")),
    raw(then="reset"),
    raw(SSE_HEAD, then="close"),
    raw(SSE_HEAD, chunk(b'data: {"half'), then="close"),
    raw(head(200, "content-length: 50", "content-type: audio/wav"), b"RIFF", then="reset"),
    raw(b"nonsense\r\n\r\n", then="hang"),
    hangs(),
    answers(b"{}", 429),
    answers(b"<html>", 503, content_type="text/html"),
    answers(b"{}", 400),
]


async def test_nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    rng = Random(20)

    async def moody(turn: Turn) -> None:
        await rng.choice(MOODS)(turn)

    async def client(port: int) -> None:
        stream = rng.random() < 0.7
        body = json.dumps({"model": "m", "messages": [], "stream": stream}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        first = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        writer.write(b"%scontent-length: %d\r\n\r\n%s" % (first, len(body), body))
        try:
            # some leave before the first byte, some inside the answer, some stay
            async with asyncio.timeout(rng.choice([0.001, 0.02, 0.1, 5.0])):
                await reader.read()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()

    options = fast_timeouts(first_byte=0.2, whole_answer=0.2, idle=0.2, total=1.0)
    before = asyncio.all_tasks()
    with caplog.at_level(logging.WARNING):
        async with (
            FaultyEngine(moody) as one,
            FaultyEngine(moody) as two,
            serving(one.url, two.url, options=options) as door,
        ):
            for _ in range(5):
                await asyncio.gather(*(client(door.port) for _ in range(40)))
            async with asyncio.timeout(20):
                while len(door.records.all) < 200:  # noqa: ASYNC110 - any of them may be the last
                    await asyncio.sleep(0.01)
            door.router.assert_idle()
            tries = [t for record in door.records.all for t in record.tries]
            assert {t.outcome for t in tries} == set(Outcome) - {Outcome.INTERNAL, Outcome.SHUT_DOWN}
            assert [t.outcome for t in tries if t.worker == "w0"].count(Outcome.OK) > 0
            assert len(tries) == len(door.router.finished)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    # a body that is cut is told by the server in a line of its own; a fault of ours would be told otherwise
    assert {r.getMessage() for r in caplog.records if r.name != "asyncio"} <= {
        "ASGI callable returned without completing response."
    }
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []
