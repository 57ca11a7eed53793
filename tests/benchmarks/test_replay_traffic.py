"""What is made of a trace's traffic, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.replay.__main__ import main
from benchmarks.replay.cases import Source
from benchmarks.replay.ceilings import ceilings
from benchmarks.replay.content import Content
from benchmarks.replay.trace import Trace, TraceRequest
from benchmarks.replay.traffic import AS_IT_IS, Beginning, Bursts, Traffic

UNIT = 16


def request(
    arrival: float, *ids: int, session: str = "s", parent: int | None = None, think: float = 0.0
) -> TraceRequest:
    return TraceRequest(arrival, len(ids) * UNIT, 4, ids, parent, think, session)


CHAT = Trace(
    "t",
    UNIT,
    (
        request(0.0, 0, 1, session="a"),
        request(1.0, 0, 2, session="b"),
        request(2.0, 0, 1, 3, session="a", parent=0, think=0.5),
        request(6.0, 0, 2, 4, session="b", parent=1, think=0.5),
    ),
)
MANY = Trace("many", UNIT, tuple(request(n, 0, n + 1, session=f"s{n}") for n in range(2000)))


def common(one: TraceRequest, other: TraceRequest) -> int:
    """Blocks that both begin with."""
    return sum(
        all(x == y for x, y in zip(one.ids[:n], other.ids[:n], strict=True))
        for n in range(1, min(len(one.ids), len(other.ids)) + 1)
    )


def made(traffic: Traffic, trace: Trace = CHAT, seed: int = 0) -> Trace:
    return traffic.times(traffic.prompts(trace, seed))


def test_a_trace_as_it_is_stays_so() -> None:
    assert made(AS_IT_IS) is CHAT


def test_bursts_come_at_the_end_of_their_time() -> None:
    told = made(Traffic(bursts=Bursts(2, 4)))
    # of the first two, at 0 and 1, in the last quarter of 1 s; of the others in that of 4 s
    assert [r.arrival for r in told.requests] == [0.75, 1.0, 5.0, 6.0]
    assert (told.name, told.rate) == ("t, bursts of 2 at 4 times the rate", CHAT.rate)
    assert [(r.parent, r.think_s, r.session) for r in told.requests] == [
        (r.parent, r.think_s, r.session) for r in CHAT.requests
    ]
    assert [common(told.requests[0], told.requests[n]) for n in (1, 2, 3)] == [1, 2, 1]


def test_strangers_share_nothing_and_wait_for_nobody() -> None:
    told = made(Traffic(cold=1.0))
    blocks = [block for r in told.requests for block in r.ids]
    assert len(set(blocks)) == len(blocks) == 10
    assert [(r.parent, r.think_s) for r in told.requests] == [(None, 0.0)] * 4
    assert len({r.session for r in told.requests}) == 4
    assert [r.arrival for r in told.requests] == [0.0, 1.0, 2.0, 6.0]
    assert ceilings(Content(told, UNIT), 1000).infinite == 0.0


def test_a_hot_prompt_is_the_same_for_all_and_a_document_its_sessions_own() -> None:
    hot = made(Traffic(hot=Beginning(1.0, 20)))  # 20 tokens are two blocks
    assert [r.input_tokens for r in hot.requests] == [64, 64, 80, 80]
    # before what they had in common anyway: two more
    assert [common(hot.requests[0], hot.requests[n]) for n in (1, 2, 3)] == [3, 4, 3]
    own = made(Traffic(documents=Beginning(1.0, 32)))
    assert [r.input_tokens for r in own.requests] == [64, 64, 80, 80]
    # behind a session's own document nothing is anybody else's
    assert [common(own.requests[0], own.requests[n]) for n in (1, 2, 3)] == [0, 4, 0]
    assert [r.parent for r in own.requests] == [None, None, 0, 1]
    both = made(Traffic(hot=Beginning(1.0, 16), documents=Beginning(1.0, 16)))
    assert (
        both.name
        == "t, the same 16 tokens before 100% of the sessions, own 16 tokens before 100% of the sessions"
    )
    assert [r.input_tokens for r in both.requests] == [64, 64, 80, 80]


def test_who_is_concerned_is_drawn_by_session_whatever_else_is_changed() -> None:
    def strangers(traffic: Traffic, seed: int) -> set[int]:
        return {n for n, r in enumerate(made(traffic, MANY, seed).requests) if r.session != f"s{n}"}

    first = strangers(Traffic(cold=0.3), 0)
    assert 0.27 * 2000 < len(first) < 0.33 * 2000
    assert strangers(Traffic(cold=0.3, bursts=Bursts(10, 2)), 0) == first
    assert strangers(Traffic(cold=0.4), 0) > first
    assert strangers(Traffic(cold=0.3), 1) != first


def test_where_there_are_no_sessions_each_request_is_drawn() -> None:
    apart = Trace("apart", UNIT, tuple(request(n, 0, n + 1, session="") for n in range(2000)))
    told = made(Traffic(cold=0.3, documents=Beginning(0.5, UNIT)), apart)
    assert 0.27 * 2000 < sum(r.session != "" for r in told.requests) < 0.33 * 2000
    longer = [r for r in told.requests if r.input_tokens == 3 * UNIT]
    assert 0.46 * 2000 < len(longer) < 0.54 * 2000
    assert len({r.ids[0] for r in longer}) == len(longer)


def test_bursts_are_of_what_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(
        "arrival_s,input_tokens,output_tokens,block_ids\n" + "".join(f"{n},16,1,b{n}\n" for n in range(100))
    )
    # whatever is skipped, each burst has its time before it
    for skip in (0, 40, 43):
        source = Source(str(trace), "csv", skip=skip, limit=20, traffic=Traffic(bursts=Bursts(10, 3)))
        arrivals = [r.arrival for r in source.content().trace.requests]
        assert (arrivals[0], arrivals[9], arrivals[10], arrivals[19]) == (6.0, 9.0, 16.0, 19.0)
    source = replace(source, limit=19)
    with pytest.raises(ValueError, match="19 requests are less than two bursts of 10"):
        source.content()


def test_from_the_command_line(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(
        "arrival_s,input_tokens,output_tokens,block_ids,session\n"
        + "".join(f"{n},32,4,a b{n % 5},s{n % 5}\n" for n in range(20))
    )
    out = tmp_path / "out.json"
    asked = [
        str(trace),
        "--format",
        "csv",
        "--workers",
        "2",
        "--blocks-per-worker",
        "64",
        "--profile",
        "fast",
    ]
    changes = ["--bursts", "5:2", "--cold", "0.5", "--hot", "0.5:32", "--documents", "0.5:16"]
    told = CliRunner().invoke(main, [*asked, "--policy", "product", *changes, "--json", str(out)])
    assert told.exit_code == 0, told.output
    assert (
        '"trace": "t, bursts of 5 at 2 times the rate, 50% strangers, the same 32 tokens' in out.read_text()
    )


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--bursts", "250", "no two numbers like 250:4"),
        ("--bursts", "2.5:4", "a whole number of requests"),
        ("--bursts", "250:1", "more than 1 times"),
        ("--bursts", "250:inf", "no two numbers like 250:4"),
        ("--hot", "1.5:100", "a share of more than 0 up to 1"),
        ("--documents", "0.5:x", "no two numbers like 0.5:8192"),
        ("--documents", "0.5:0", "a whole number of tokens"),
        ("--cold", "2", "0<=x<=1"),
    ],
)
def test_what_no_traffic_is_is_said(tmp_path: Path, option: str, value: str, why: str) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens,block_ids\n0,16,1,a\n1,16,1,b\n")
    told = CliRunner().invoke(
        main, [str(trace), "--format", "csv", "--blocks-per-worker", "64", option, value]
    )
    assert (told.exit_code, why in told.output.replace("\n", " ")) == (2, True), told.output
