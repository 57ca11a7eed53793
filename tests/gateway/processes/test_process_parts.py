"""The small decisions: who takes a connection, when to start again, what travels, rows put together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import trustme

from gateway.api.intake import Intake
from gateway.backoff import Backoff
from gateway.errors import ConfigError
from gateway.processes.acceptor import Acceptor
from gateway.processes.board import ABSENT, Board, board_file, others_have_room
from gateway.processes.care import Care, Patience
from gateway.processes.crew import Crew
from gateway.processes.ended import Ended
from gateway.processes.fleet_rows import merged_rows
from gateway.processes.member import Member, Phase
from gateway.processes.relay import Line
from gateway.processes.silence import Silence
from gateway.processes.wire import Beat, Begin, Channel, incoming, outgoing
from gateway.settings import Settings
from gateway.settings_load import load


@pytest.mark.parametrize(
    ("counts", "seat", "wait"),
    [
        ((3, 2), 0, True),
        ((3, 2), 1, False),
        ((3, 3), 0, False),
        ((3, ABSENT), 0, False),
        ((3, ABSENT, 1), 0, True),
        ((0, 0, 0), 2, False),
    ],
)
def test_who_has_more_than_another_waits(counts: tuple[int, ...], seat: int, wait: bool) -> None:
    assert others_have_room(counts, seat) is wait


def test_a_board_is_read_by_all_who_have_its_file() -> None:
    descriptor = board_file(3)
    one, two = Board(descriptor, 3), Board(descriptor, 3)
    os.close(descriptor)
    assert two.counts() == [ABSENT] * 3
    one.set(1, 7)
    assert two.counts() == [ABSENT, 7, ABSENT]
    two.leave(1)
    assert one.counts() == [ABSENT] * 3
    one.close()
    two.close()


def test_short_lives_wait_longer_and_longer_and_a_long_one_not_at_all() -> None:
    backoff = Backoff(first=0.5, most=4.0, well=60.0)
    lives = [1, 1, 1, 1, 1, 60, 1]
    assert [backoff.after(lived) for lived in lives] == [0.5, 1.0, 2.0, 4.0, 4.0, 0.0, 0.5]


def test_backoff_stays_bounded_for_ever() -> None:
    backoff = Backoff()
    assert [backoff.after(0.0) for _ in range(3000)][-1] == 30.0


class Told(asyncio.Protocol):
    """Says who took the connection."""

    def __init__(self, name: bytes, there: set[asyncio.Protocol]) -> None:
        self._name, self._there = name, there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._there.add(self)
        transport.write(self._name)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self._there.discard(self)


def _listening() -> tuple[socket.socket, int]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    return sock, sock.getsockname()[1]


def _acceptor(
    shared: socket.socket, board: Board, seat: int, context: ssl.SSLContext | None = None
) -> Acceptor:
    there: set[asyncio.Protocol] = set()
    return Acceptor(
        shared.dup(), board, seat,
        Intake(
            lambda: Told(b"%d" % seat, there), context=context, max_connections=100, patience=10.0,
            open_connections=lambda: len(there),
        ),
    )  # fmt: skip


@pytest.mark.anyio
async def test_connections_are_split_evenly_and_go_on_where_one_stops() -> None:
    shared, port = _listening()
    descriptor = board_file(3)
    board = Board(descriptor, 3)
    os.close(descriptor)
    acceptors = [_acceptor(shared, board, seat) for seat in range(3)]
    for acceptor in acceptors:
        acceptor.start()

    async def connect() -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return await reader.readexactly(1), writer

    taken = [await connect() for _ in range(9)]
    split = Counter(name for name, _ in taken)
    # left to the kernel it would be all of them for whoever is woken first
    assert min(split[b"%d" % seat] for seat in range(3)) >= 2
    acceptors[1].stop()
    assert board.counts()[1] == ABSENT
    taken += [await connect() for _ in range(4)]
    later = Counter(name for name, _ in taken)
    assert later[b"1"] == split[b"1"]
    assert later[b"0"] + later[b"2"] == split[b"0"] + split[b"2"] + 4
    for acceptor in (acceptors[0], acceptors[2]):
        acceptor.stop()
    for _, writer in taken:
        writer.close()
        await writer.wait_closed()
    shared.close()
    board.close()


@pytest.mark.anyio
async def test_tls_with_a_connection_that_breaks_off_before_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    shared, port = _listening()
    descriptor = board_file(1)
    board = Board(descriptor, 1)
    os.close(descriptor)
    acceptor = _acceptor(shared, board, 0, server)
    acceptor.start()
    _, plain = await asyncio.open_connection("127.0.0.1", port)
    plain.write(b"GET / HTTP/1.1\r\n\r\n")  # no handshake
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
    assert await reader.readexactly(1) == b"0"
    acceptor.stop()
    for one in (plain, writer):
        one.close()
        with contextlib.suppress(OSError):  # the server reset the one that spoke no TLS
            await one.wait_closed()
    shared.close()
    board.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("phase", "said_last", "patience"),
    [
        (Phase.STARTING, False, Patience(begin=0.5, hung=9e9, ending=9e9)),
        (Phase.SERVING, False, Patience(begin=9e9, hung=0.5, ending=9e9)),
        (Phase.DRAINING, False, Patience(begin=9e9, hung=9e9, ending=0.5)),
        (Phase.DRAINING, True, Patience(begin=9e9, hung=0.5, ending=0.0)),  # it closes what it has
    ],
)
async def test_one_that_says_nothing_is_killed(
    tmp_path: Path, phase: Phase, said_last: bool, patience: Patience
) -> None:
    crew = Crew(time.monotonic)
    descriptor = board_file(1)
    care = Care(crew, Board(descriptor, 1), Ended(time.monotonic), patience)
    os.close(descriptor)
    ours, theirs = socket.socketpair()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(600)", pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    silence = Silence()
    line = Line(str(tmp_path / "admin"), "process-0", silence)
    member = Member(0, 0, 0.0, process, await Channel.over(ours), line, silence)
    member.phase, member.said_last = phase, said_last
    crew.members.append(member)
    await asyncio.gather(care.attend(member), care.watch(member))
    assert member.given_up
    assert process.returncode == -signal.SIGKILL
    assert member.how() == "signal 9"
    assert crew.members == []
    care.board.close()


@pytest.mark.anyio
async def test_who_has_most_takes_it_all_the_same_where_nobody_else_comes() -> None:
    shared, port = _listening()
    descriptor = board_file(2)
    board = Board(descriptor, 2)
    os.close(descriptor)
    board.set(1, 0)  # it says that it has room, and hangs
    acceptor = _acceptor(shared, board, 0)
    acceptor.start()
    writers = []
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(1) == b"0"
        writers.append(writer)
    assert board.counts() == [3, 0]
    acceptor.stop()
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    shared.close()
    board.close()


@pytest.mark.anyio
async def test_settings_travel_whole_and_the_environment_adds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = load(
        {
            "workers": ("http://127.0.0.1:1,weight=2",),
            "admin_token": "a-token-of-some-length",
            "tls_cert": Path("/some/cert"),
            "aliases": {"a": "m"},
            "policy_params": {"work_weight": "2"},
            "redis_url": "redis://127.0.0.1:1/0",
            "processes": 3,
        }
    )
    ours, theirs = socket.socketpair()
    one, two = await Channel.over(ours), await Channel.over(theirs)
    one.send(Begin(outgoing(given), 1, 2, 6, "/path", None, "name"))
    monkeypatch.setenv("GATEWAY_TRIES", "9")
    begin = await two.receive()
    assert isinstance(begin, Begin)
    got = incoming(begin.settings)
    assert {name: getattr(got, name) for name in Settings.model_fields} == {
        name: getattr(given, name) for name in Settings.model_fields
    }
    assert got.admin_token is not None
    assert got.admin_token.get_secret_value() == "a-token-of-some-length"
    two.send(Beat(None, 4))
    assert await one.receive() == Beat(None, 4)
    await two.close()
    assert await one.receive() is None
    await one.close()


def test_several_processes_need_something_to_share_through() -> None:
    with pytest.raises(ConfigError, match="3 processes need redis_url"):
        load({"processes": 3})
    assert load({"processes": 3, "redis_url": "redis://127.0.0.1:1"}).processes == 3


def test_rows_of_a_worker_are_put_together() -> None:
    def row(requests: int, peers: int, promised: int, drift: float, next_seq: int) -> dict[str, object]:
        load = {"requests": requests, "waiting_tokens": 10 * requests, "decoding_tokens": requests}
        promise = {"promises": 1, "promised_tokens": promised, "short_tokens": 2, "extra_tokens": 0}
        return {
            "id": "w",
            "state": "ready",
            "load": {**load, "peer_requests": peers, "max_requests": 8},
            "promise": {**promise, "drift": drift, "degraded": drift > 0.5},
            "events": {"next_seq": next_seq, "epochs": 0},
        }

    # 4 + 1 here, 2 on another machine
    (made,) = merged_rows(
        [[row(4, 3, 100, 0.1, 5)], [row(1, 6, 300, 0.9, 9), {**row(1, 1, 1, 1, 1), "id": "x"}]]
    )
    assert made["load"] == {
        "requests": 5, "waiting_tokens": 50, "decoding_tokens": 5, "peer_requests": 2, "max_requests": 8,
    }  # fmt: skip
    assert made["promise"] == {
        "promises": 2, "promised_tokens": 400, "short_tokens": 4, "extra_tokens": 0, "degraded": True,
        "drift": pytest.approx(0.7),
    }  # fmt: skip
    assert made["events"] == {"next_seq": 9, "epochs": 0}
