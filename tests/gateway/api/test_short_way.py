"""A stream's usual reads take a short way to the client: with the same bytes and notes as by the long one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.direct import Cycle, DirectOutlet
from gateway.errors import UpstreamTimeout
from gateway.types import Usage
from gateway.upstream.client import UpstreamClient
from gateway.upstream.connection import Connection
from gateway.upstream.lane import Lane
from gateway.upstream.origin import Origin
from gateway.upstream.proxy import AnswerPlan, Exchange
from gateway.upstream.redact import Redactor
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.wire import Sink, UpstreamRequest

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIELD = "kv_transfer_params"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"
PATIENT = Timeouts()


def event(text: str, *, escaped: bool = False, **more: Any) -> bytes:
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    return b"data: " + json.dumps(chunk, ensure_ascii=escaped).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def in_capitals(data: bytes) -> bytes:
    return b"%X\r\n%s\r\n" % (len(data), data)


def extended(data: bytes) -> bytes:
    return b"0%x;a=b\r\n%s\r\n" % (len(data), data)


def halved(data: bytes) -> bytes:
    return framed(data[:9]) + (framed(data[9:]) if data[9:] else b"")


def longer_than_it_is(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data) + 1, data)


class Wire(asyncio.Transport):
    """A socket's end: keeps what is written to it, one write a piece."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class ByHand:
    """A loop whose clock is set by hand, and whose timers ring when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rings: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def call_at(self, when: float, callback: Callable[[], None]) -> ByHand:
        self.rings = when, callback
        return self

    def cancel(self) -> None:
        self.rings = None

    def ring(self) -> None:
        assert self.rings is not None
        self.now, callback = self.rings
        callback()


class LongWay(DirectOutlet):
    """One that has no short way to offer."""

    framed = None


class Counted(Exchange):
    """Knows how many reads took the long way."""

    long = 0

    def on_body(self, data: bytes, last: bool) -> Lane | None:
        self.long += 1
        return super().on_body(data, last)


class OneConnection(UpstreamClient):
    """In whose place there is but one, which has been made."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    async def exchange(
        self, url: str, request: UpstreamRequest, sink: Sink, timeouts: Timeouts, deadline: float
    ) -> None:
        await self._connection.run(request, sink, timeouts, deadline)


@dataclass
class Rig:
    """One answer on its way from `connection` to `client`."""

    outlet_kind: type[DirectOutlet]
    version: str = "1.1"
    loop: ByHand = field(default_factory=ByHand)
    worker: Wire = field(default_factory=Wire)
    client: Wire = field(default_factory=Wire)

    def __post_init__(self) -> None:
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.connection = Connection(Origin.parse("http://127.0.0.1:1"), loop, lambda _: None)
        self.connection.connection_made(self.worker)
        self.cycle = Cycle(
            {"method": "POST", "http_version": self.version},
            self.client,
            FlowControl(self.client),
            [],
            expect_100_continue=False,
            keep_alive=True,
            on_response=lambda: None,
        )
        self.outlet = self.outlet_kind(self.cycle)
        plan = AnswerPlan(
            headers=[],
            readable=True,
            error_event=lambda error: b"data: %s\n\n" % error.message.encode(),
            unserved=lambda: b"",
            hide_usage=True,
            redactor=Redactor((FIELD,)),
        )
        self.exchange = Counted(self.outlet, plan, lambda: self.loop.now, lambda: None)

    async def run(self, timeouts: Timeouts) -> None:
        request = UpstreamRequest(b"POST", b"/", [], b"{}", streamed=True)
        await self.exchange.run(OneConnection(self.connection), "", request, timeouts, 1e9)

    @property
    def notes(self) -> tuple[Any, ...]:
        one = self.exchange
        return (
            one.pieces, one.first_byte_at, one.longest_gap, one.mean_gap, one.usage, one.stream_error,
            one.whole, one.error and one.error.message,
        )  # fmt: skip


@asynccontextmanager
async def answering(rig: Rig, timeouts: Timeouts = PATIENT) -> AsyncIterator[Callable[[bytes], None]]:
    """Gives what is to be called with each read; where the answer has not ended by the end, it is cut off."""
    task = asyncio.create_task(rig.run(timeouts))
    await asyncio.sleep(0)
    try:
        yield rig.connection.data_received
    finally:
        await asyncio.sleep(0)
        if not task.done():
            rig.connection.connection_lost(None)
        await task


async def _told(rig: Rig, reads: Sequence[tuple[float, bytes]]) -> Rig:
    async with answering(rig) as receive:
        for gap, read in reads:
            rig.loop.now += gap
            if not rig.worker.aborted:
                receive(read)
    return rig


def told(rig: Rig, reads: Sequence[tuple[float, bytes]]) -> Rig:
    """How `reads`, each with the seconds before it, are told."""
    return asyncio.run(_told(rig, reads))


TEXTS = st.one_of(
    st.sampled_from(
        ["", "a", "bc", '"', "\\", "\n", "\r", "usage", "error", FIELD, "é", "[DONE]", "x" * 300]
    ),
    st.text(max_size=5),
)
MORE: list[dict[str, Any]] = [
    {}, {}, {}, {"usage": None}, {"usage": USAGE}, {"error": {"code": 500}}, {FIELD: {"a": 1}},
]  # fmt: skip
EVENTS = st.one_of(
    st.builds(lambda text, more: event(text, **more), TEXTS, st.sampled_from(MORE)),
    st.builds(event, TEXTS),
    st.builds(lambda text: event(text, escaped=True), TEXTS),
    st.sampled_from([DONE, b": ping\n\n", b"event: error\ndata: {}\n\n", b"data: {\n\n", event("a")[:-1]]),
)
FRAMES = [framed, framed, framed, in_capitals, extended, halved, longer_than_it_is]
CHUNKS = st.builds(lambda frame, data: frame(data), st.sampled_from(FRAMES), EVENTS)


@st.composite
def reads_of_a_stream(draw: st.DrawFn) -> list[tuple[float, bytes]]:
    chunks = [HEAD, *draw(st.lists(CHUNKS, max_size=12)), *draw(st.sampled_from([[], [LAST]]))]
    reads: list[bytes] = []
    for chunk in chunks:
        how = draw(st.sampled_from(["whole", "whole", "whole", "cut", "joined"]))
        if how == "joined" and reads:
            reads[-1] += chunk
        elif how == "cut":
            at = draw(st.integers(1, len(chunk) - 1))
            reads += [chunk[:at], chunk[at:]]
        else:
            reads.append(chunk)
    return [(draw(st.sampled_from([0.0, 0.5, 1.0, 2.25])), read) for read in reads]


@given(reads_of_a_stream())
def test_any_stream_at_any_cuts_is_told_as_by_the_long_way(reads: list[tuple[float, bytes]]) -> None:
    short, long = told(Rig(DirectOutlet), reads), told(Rig(LongWay), reads)
    assert short.client.written == long.client.written
    assert short.notes == long.notes
    assert short.exchange.long <= long.exchange.long


def test_the_usual_read_takes_the_short_way() -> None:
    usage = event("", usage=USAGE).replace(b'[{"index": 0, "delta": {"content": ""}}]', b"[]")
    texts = ["a", "b", "é", "\n", "", "longer than before", "z"]
    rig = told(
        Rig(DirectOutlet),
        [
            (0.0, HEAD),
            (1.0, framed(event("a"))),  # its shape is learned, with the head on its way
            *[(0.5, framed(event(text))) for text in texts],
            (3.0, framed(event('a"'))),  # has a quote in it
            *[(0.25, framed(event(text))) for text in texts],
            (0.5, framed(usage) + framed(DONE) + LAST),
        ],
    )
    said = b"".join(rig.client.written).partition(b"\r\n\r\n")[2]
    events = [event(text) for text in ("a", *texts, 'a"', *texts)]
    assert said == b"".join(map(framed, [*events, DONE])) + LAST
    # the first two, that with a quote, and the end
    assert rig.exchange.long == 4
    assert (rig.exchange.pieces, rig.exchange.whole) == (16, True)
    assert (rig.exchange.first_byte_at, rig.exchange.longest_gap) == (101.0, 3.0)
    assert rig.exchange.mean_gap == (7 * 0.5 + 3.0 + 7 * 0.25) / 15
    assert rig.exchange.usage == Usage(3, 2, 1)


IN_LETTERS = event("abcdefg")
"""79 bytes: 4f, or 4F."""


@pytest.mark.parametrize(
    ("frame", "version", "long"),
    [
        (framed, "1.1", 2),
        (framed, "1.0", 40),  # its client gets no chunks
        (in_capitals, "1.1", 40),
        (extended, "1.1", 40),
        (halved, "1.1", 40),
    ],
)
def test_what_would_go_out_in_other_bytes_takes_the_long_way(
    frame: Callable[[bytes], bytes], version: str, long: int
) -> None:
    assert framed(IN_LETTERS).startswith(b"4f\r\n")
    rig = told(Rig(DirectOutlet, version), [(0.0, HEAD), *[(1.0, frame(IN_LETTERS))] * 40])
    assert rig.exchange.long == long
    assert rig.exchange.pieces == 40


@pytest.mark.parametrize(("others", "long"), [(10, 10), (16, 16), (17, 37), (40, 60)])
def test_a_stream_that_hardly_ever_takes_it_is_not_asked_for_ever(others: int, long: int) -> None:
    reads = [in_capitals(IN_LETTERS)] * others + [framed(IN_LETTERS)] * 20
    rig = told(Rig(DirectOutlet), [(0.0, HEAD), *[(1.0, read) for read in reads]])
    assert rig.exchange.long == long
    assert rig.exchange.pieces == others + 20


def test_one_that_takes_it_now_and_then_is_asked_each_time() -> None:
    reads = [framed(event("a")), *[framed(event('"')), framed(event("b"))] * 40]
    rig = told(Rig(DirectOutlet), [(1.0, read) for read in [HEAD, *reads]])
    # each with a quote, and the first
    assert (rig.exchange.long, rig.exchange.pieces) == (41, 81)


def test_several_events_in_a_read_are_no_reason_to_stop_asking() -> None:
    two, one = framed(event("a")) + framed(event("b")), framed(event("c"))
    rig = told(Rig(DirectOutlet), [(1.0, read) for read in [HEAD, one, *[two] * 40, *[one] * 40]])
    # the first, all with two, and one behind them
    assert (rig.exchange.long, rig.exchange.pieces) == (42, 121)


def test_a_stream_of_nothing_but_escapes_takes_it_too() -> None:
    data = [framed(event(text, escaped=True)) for text in "数独の本"]
    assert data[0].count(b"\\u") == 1
    rig = told(Rig(DirectOutlet), [(1.0, read) for read in [HEAD, *data * 10, LAST]])
    assert (rig.exchange.long, rig.exchange.pieces) == (3, 40)
    assert b"".join(rig.client.written).partition(b"\r\n\r\n")[2] == b"".join(data * 10) + LAST


def test_a_shape_that_changes_each_second_takes_it_in_between() -> None:
    event_of = b'data: {"created":%d,"choices":[{"delta":{"content":"a"}}]}\n\n'
    reads = [framed(event_of % (n // 20)) for n in range(1000)]
    rig = told(Rig(DirectOutlet), [(0.05, read) for read in [HEAD, *reads, LAST]])
    # the first of each second, the second of all, and the end
    assert (rig.exchange.long, rig.exchange.pieces) == (52, 1000)


def test_behind_the_beginning_of_an_event_nothing_takes_it() -> None:
    begun, whole = event("b")[:20], event("c")
    reads = [framed(event("a")), framed(event("a")), framed(event("a") + begun), framed(whole), LAST]
    rig = told(Rig(DirectOutlet), [(1.0, read) for read in [HEAD, *reads]])
    body = b"".join(rig.client.written).partition(b"\r\n\r\n")[2]
    assert body == framed(event("a")) * 3 + framed(begun + whole) + LAST
    assert rig.exchange.pieces == 4


def test_half_of_what_the_short_way_would_take_waits_for_its_other_half() -> None:
    data = framed(event("abcdefgh"))
    for at in range(1, len(data)):
        start = [(0.0, HEAD), (1.0, data), (1.0, data), (1.0, data)]
        rig = told(Rig(DirectOutlet), [*start, (1.0, data[:at]), (1.0, data[at:]), (1.0, data), (1.0, LAST)])
        assert b"".join(rig.client.written).partition(b"\r\n\r\n")[2] == data * 5 + LAST
        assert (rig.exchange.pieces, rig.exchange.whole) == (5, True)


def test_what_only_looks_like_a_chunk_is_not_taken_for_one() -> None:
    one, inside = event("a"), framed(event("b"))
    start = b"%x\r\n%s" % (len(one) + len(inside), one)
    reads = [HEAD, framed(one), framed(one), start, inside, b"\r\n", framed(one), LAST]
    rig = told(Rig(DirectOutlet), [(1.0, read) for read in reads])
    body = b"".join(rig.client.written).partition(b"\r\n\r\n")[2]
    assert body == framed(one) * 3 + framed(inside[:-2]) + framed(inside[-2:] + one) + LAST
    assert (rig.exchange.pieces, rig.exchange.whole) == (5, True)


@pytest.mark.anyio
async def test_what_went_by_the_short_way_was_heard() -> None:
    data = framed(event("a"))
    rig = Rig(DirectOutlet)
    async with answering(rig, Timeouts(first_byte=10, idle=10, total=1e9)) as receive:
        receive(HEAD + data)
        receive(data)
        for _ in range(6):  # 24 seconds, never ten without a piece
            rig.loop.now += 4.0
            receive(data)
            if rig.loop.rings is not None and rig.loop.rings[0] <= rig.loop.now:
                rig.loop.rings[1]()
        heard = rig.loop.now
        assert (heard, rig.exchange.long, rig.worker.aborted) == (124.0, 2, False)
        while not rig.worker.aborted:
            rig.loop.ring()
        assert heard + 10 <= rig.loop.now <= heard + 10.1
    assert isinstance(rig.exchange.error, UpstreamTimeout)
    assert rig.exchange.error.phase == "idle"
    assert rig.exchange.pieces == 8


@pytest.mark.anyio
async def test_to_a_client_that_has_gone_nothing_is_written() -> None:
    data = framed(event("a"))
    rig = Rig(DirectOutlet)
    async with answering(rig) as receive:
        receive(HEAD + data)
        receive(data)
        receive(data)
        written = list(rig.client.written)
        assert (len(written), rig.exchange.long) == (3, 2)
        rig.cycle.disconnected = True
        rig.outlet.left()
        receive(data)
        receive(data)
        assert rig.client.written == written
        assert rig.exchange.long == 4
