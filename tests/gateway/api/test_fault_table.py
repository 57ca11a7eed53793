"""docs/faults.md, row by row: each cell of its table is what happens here, against the whole gateway."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.fleet.load import Lease
from gateway.types import WorkerId
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
    token,
)
from tests.gateway.api.told import OWN, ask
from tests.gateway.api.whole import whole

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
GOOD_STREAM = [token("a"), token("b"), DONE]
BARE_SSE = head(200, "content-type: text/event-stream")
JSON_HEAD = "content-type: application/json"


def good(turn: Turn) -> Script:
    """Whatever was asked for."""
    if b'"stream": true' in turn.seen.body or b'"stream":true' in turn.seen.body:
        return streams(GOOD_STREAM)
    return answers(b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}')


async def serves(turn: Turn) -> None:
    await good(turn)(turn)


def begins(*rest: bytes, then: str = "close") -> Script:
    """A stream whose first token has arrived, and then this."""
    return raw(SSE_HEAD, chunk(token("a")), *rest, then=then)


def drips(turn: Turn) -> Script:
    body = b'{"choices":[]}'
    text = head(200, JSON_HEAD, f"content-length: {len(body)}") + body
    return raw(*(text[i : i + 1] for i in range(len(text))), then="keep")


async def dripping(turn: Turn) -> None:
    await drips(turn)(turn)


ERROR_EVENT = b'data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}\n\n'
BUSY_WORDS = (
    b'{"error":{"message":"The engine is currently busy and cannot accept new requests.","code":503}}'
)


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: sockets under both are tried in the tests of the parts."""
    return "asyncio"


# fault of the table → (what the engine does, whether a stream is asked for)
FAULTS: dict[tuple[str, str], tuple[Script, bool]] = {
    ("connection refused", "connect"): (serves, False),
    ("closes", "no answer yet"): (raw(then="close"), False),
    ("resets", "no answer yet"): (raw(then="reset"), False),
    ("silence", "no answer yet"): (hangs(), False),
    ("half a head, then closes", "head"): (raw(b"HTTP/1.1 200 O", then="close"), False),
    ("bytes that are not HTTP", "head"): (raw(b"SSH-2.0-OpenSSH\r\n", then="hang"), False),
    ("a status below 100", "head"): (
        raw(b"HTTP/1.1 099 X\r\ncontent-length: 2\r\n\r\n{}", then="hang"),
        False,
    ),
    ("a status above 599", "head"): (
        raw(b"HTTP/1.1 600 X\r\ncontent-length: 2\r\n\r\n{}", then="hang"),
        False,
    ),
    ("HTTP/1.2", "head"): (raw(b"HTTP/1.2 200 OK\r\ncontent-length: 2\r\n\r\n{}", then="hang"), False),
    ("65 interim answers", "head"): (
        raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 65, head(200, "content-length: 2") + b"{}", then="hang"),
        False,
    ),
    ("both length headers", "head"): (
        raw(head(200, JSON_HEAD, "content-length: 2", "transfer-encoding: chunked") + b"{}", then="hang"),
        False,
    ),
    ("a head of 100 KB", "head"): (raw(head(200, "x-long: " + "x" * 100_000) + b"{}", then="hang"), False),
    ("silence", "head"): (raw(SSE_HEAD, then="hang"), True),
    ("closes", "head"): (raw(SSE_HEAD, then="close"), True),
    ("half a JSON answer, then closes", "body"): (
        raw(head(200, JSON_HEAD, "content-length: 90") + b'{"a"', then="close"),
        False,
    ),
    ("JSON that only the close ends, cut", "body"): (raw(head(200, JSON_HEAD) + b'{"a": [1,'), False),
    ("a chunk size that is no number", "body"): (
        raw(head(200, JSON_HEAD, "transfer-encoding: chunked") + b"zz\r\n{}\r\n", then="hang"),
        False,
    ),
    ("half an event, then resets", "first event"): (raw(SSE_HEAD, chunk(b'data: {"cho'), then="reset"), True),
    ("half an event, then the body's end", "first event"): (
        raw(SSE_HEAD, chunk(b'data: {"cho'), b"0\r\n\r\n", then="keep"),
        True,
    ),
    ("200 with nothing in it", "body"): (answers(b""), False),
    ("204", "status"): (raw(b"HTTP/1.1 204 No Content\r\n\r\n", then="keep"), False),
    ("a length too short by some bytes", "body"): (
        raw(head(200, JSON_HEAD, "content-length: 14") + b'{"choices":[]}trailing', then="keep"),
        False,
    ),
    ("one byte at a time", "body"): (dripping, False),
    ("says gzip and is not", "body"): (answers(b"plain", 200, "content-encoding: gzip"), False),
    ("429", "status"): (answers(OWN, 429), False),
    ("429 with Retry-After: 7", "status"): (answers(OWN, 429, "retry-after: 7"), False),
    ("503 with Retry-After: 7", "status"): (answers(OWN, 503, "retry-after: 7"), False),
    ("503 that says busy", "status"): (answers(BUSY_WORDS, 503), False),
    ("502", "status"): (answers(OWN, 502), False),
    ("503", "status"): (answers(OWN, 503), False),
    ("504", "status"): (answers(OWN, 504), False),
    ("508", "status"): (answers(OWN, 508), False),
    ("502 with a page of HTML", "status"): (answers(b"<html>", 502, content_type="text/html"), False),
    ("400", "status"): (answers(OWN, 400), False),
    ("401", "status"): (answers(OWN, 401), False),
    ("404", "status"): (answers(OWN, 404), False),
    ("422", "status"): (answers(OWN, 422), False),
    ("501", "status"): (answers(OWN, 501), False),
    ("500", "status"): (answers(OWN, 500), False),
    ("closes", "stream"): (begins(then="close"), True),
    ("resets", "stream"): (begins(then="reset"), True),
    ("silence", "stream"): (begins(then="hang"), True),
    ("half an event, then closes", "stream"): (begins(chunk(b'data: {"cho'), then="close"), True),
    ("half an event, then the body's end", "stream"): (
        begins(chunk(b'data: {"cho'), b"0\r\n\r\n", then="keep"),
        True,
    ),
    ("a chunk size that is no number", "stream"): (begins(b"zz\r\n", then="hang"), True),
    ("an error that the engine reports", "stream"): (streams([token("a"), ERROR_EVENT, DONE]), True),
    ("closes, nothing else ends it", "stream"): (raw(BARE_SSE, token("a")), True),
}


@dataclass(frozen=True)
class Row:
    fault: str
    moment: str
    another: str
    alone: str
    breaker: str
    outcome: str


def table() -> list[Row]:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    lines = text.split("<!-- faults -->")[1].strip().splitlines()[2:]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def test_each_row_is_tested_and_each_test_has_its_row() -> None:
    assert [(row.fault, row.moment) for row in table()] == list(FAULTS)


LIMITS = {"first_byte_timeout": 0.15, "whole_answer_timeout": 0.15, "idle_timeout": 0.15}


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row.fault} / {row.moment}")
async def test_with_another_worker(row: Row) -> None:
    script, stream = FAULTS[row.fault, row.moment]
    limits = LIMITS if row.outcome == "timeout" else {}
    async with (
        FaultyEngine(script, model="m") as bad,
        FaultyEngine(serves, model="m") as fine,
        whole(bad.url, fine.url, **limits) as gateway,
    ):
        if row.moment == "connect":
            bad.refuse()
        # the other one looks busy, so that the bad one comes first
        load = gateway.app.router.load_of(gateway.app.registry.workers()[1])
        lease = Lease.take(load, prompt_tokens=1_000_000, matched_tokens=0)
        assert await ask(gateway.url, stream=stream) == row.another
        await gateway.records(1)
        lease.release()
        passed_on = gateway.retries() if len(fine.seen) else gateway.outcomes()
        assert passed_on == {row.outcome: 1}
        gateway.assert_idle()


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row.fault} / {row.moment}")
async def test_alone(row: Row) -> None:
    """Three times, which opens the breaker where it counts."""
    script, stream = FAULTS[row.fault, row.moment]
    limits = LIMITS if row.outcome == "timeout" else {}
    async with FaultyEngine(script, model="m") as bad, whole(bad.url, **limits, queue_wait=0.001) as gateway:
        if row.moment == "connect":
            bad.refuse()
        assert await ask(gateway.url, stream=stream) == row.alone
        await gateway.records(1)
        assert gateway.outcomes() == {row.outcome: 1}
        gateway.assert_idle()
        for n in (2, 3):
            await ask(gateway.url, stream=stream)
            await gateway.records(n)
        assert gateway.open_breakers() == ([WorkerId(bad.url)] if row.breaker == "counts" else [])
        gateway.assert_idle()


def test_each_complaint_about_others_has_its_tests() -> None:
    listed = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").split("<!-- complaints -->")[1]
    named = set(re.findall(r"`(test_\w+)`", listed))
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = {name for source in sources for name in re.findall(r"^(?:async )?def (test_\w+)", source, re.M)}
    assert named - defined == set()
    assert len(named) > 40
