from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from math import isnan
from pathlib import Path
from random import Random

import pytest

from benchmarks.children import running
from benchmarks.fleet import free_row
from benchmarks.live.client import Client, Heard
from benchmarks.live.engines import MODEL, Counters, running_engines
from benchmarks.live.measure import measure, row_of
from benchmarks.live.merge import merged
from benchmarks.live.plan import ChatShape, Plan, Turn, chats
from benchmarks.live.play import Answer
from benchmarks.live.processes import cores_busy_s, group_cpu_s, wait_until
from benchmarks.live.report import into_page, markdown, medians, save
from benchmarks.live.routers import PINNED, lineup
from benchmarks.live.words import load_words


def test_a_row_by_hand() -> None:
    turns = tuple(Turn(float(n), "x", 1, "s") for n in range(5))
    plan = Plan("toy", turns, "fast", 10, slo_ttft_s=0.25, about="")
    answers = [Answer(True, ttft, 0.0) for ttft in (0.1, 0.2, 0.3, 0.4)] + [Answer(False, float("nan"), 0.0)]
    counted = [Counters(asked=300, cached=200), Counters(asked=100, cached=50)]
    row = row_of("r", plan, 0, answers, counted, cpu_s=0.01, busy=0.5)
    assert (row.requests, row.failed) == (5, 1)
    assert row.hit_rate == 250 / 400
    # 100 and 50 tokens were prefilled, 75 on average
    assert row.balance == pytest.approx(100 / 75)
    assert (row.ttft_p50_s, row.ttft_p99_s) == (0.2, 0.4)
    # two of five within the limit, over four seconds
    assert (row.goodput_rps, row.within_slo) == (0.5, 0.4)
    assert row.router_cpu_ms == pytest.approx(2.0)


def test_turns_that_are_all_due_at_once_have_no_goodput() -> None:
    """`--only mooncake --requests 1`: over no time nothing can be counted a second."""
    plan = Plan("toy", (Turn(0.0, "x", 1, "s"),), "fast", 10, 1.0, "")
    row = row_of("r", plan, 0, [Answer(True, 0.1, 0.0)], [Counters(10, 5)], 0.0, 0.0)
    assert isnan(row.goodput_rps)
    assert markdown(medians([asdict(row)])).splitlines()[-1] == (
        "| r | 0.500 | 1.000 | 100 | 100 | – | 1.000 | 0.00 | 0.00 | 0 |"
    )


def test_medians_and_merging(tmp_path: Path) -> None:
    plan = Plan("toy", (Turn(0.0, "x", 1, "s"), Turn(1.0, "x", 1, "s")), "fast", 10, 1.0, "")
    rows = [
        row_of(router, plan, n, [Answer(True, ttft, 0.0)] * 2, [Counters(10, 5)], 0.0, 0.0)
        for n, (router, ttft) in enumerate([("a", 0.1), ("b", 0.5), ("a", 0.3), ("a", 0.2)])
    ]
    save(tmp_path / "one.json", rows, {"engines": 1, "seed": 0, "workloads": {"toy": "of wood"}})
    plain = [asdict(row) for row in rows]
    middle = medians(plain)
    assert [(m["router"], m["rounds"], m["ttft_p50_s"]) for m in middle] == [("a", 3, 0.2), ("b", 1, 0.5)]
    table = markdown(middle)
    assert "| a | 0.500 | 1.000 | 200 | 200 |" in table
    saved = json.loads((tmp_path / "one.json").read_text())
    assert (saved["medians"], saved["rows"], saved["workloads"]) == (middle, plain, {"toy": "of wood"})
    document = {"machine": {}, "engines": 1, "seed": 0, "workloads": {"toy": ""}, "rows": plain[:2]}
    more = {**document, "workloads": {"chats": ""}, "rows": plain[2:]}
    both = merged([document, more])
    assert both["medians"] == middle
    assert list(both["workloads"]) == ["toy", "chats"]
    with pytest.raises(ValueError, match="seed differs: 0 and 1"):
        merged([document, {**more, "seed": 1}])


def test_tables_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- live:begin -->\nold\n<!-- live:end -->\nafter\n")
    into_page(page, "new\n")
    assert page.read_text() == "before\n<!-- live:begin -->\nnew\n<!-- live:end -->\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="has no"):
        into_page(page, "new\n")


def test_cpu_is_counted_for_a_whole_group(tmp_path: Path) -> None:
    log, done = tmp_path / "log", tmp_path / "done"
    cores = os.sched_getaffinity(0)
    # a grandchild works and goes on living, the leader itself only waits
    script = "import pathlib, sys, time\nwhile time.process_time() < 0.5: pass\n"
    script += "pathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)"
    command = ["sh", "-c", f"{sys.executable} -c '{script}' {done} & wait"]
    before = cores_busy_s(cores)
    with running(command, log) as process:
        wait_until(done.exists, process, log, 60.0)
        # ticks of a hundredth of a second
        assert group_cpu_s(process.pid) >= 0.48
        assert cores_busy_s(cores) - before >= 0.48


def test_who_ends_too_early_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(["sh", "-c", "echo no room; exit 3"], log) as process, pytest.raises(RuntimeError) as error:
        wait_until(lambda: False, process, log, 60.0)
    assert "ended: no room" in str(error.value)


def test_our_router_and_none_on_live_engines(tmp_path: Path) -> None:
    """Two conversations of four turns over one system prompt, on two engines that take next to no time."""
    shape = ChatShape(
        conversations=2,
        turns=4,
        systems=1,
        system_words=200,
        user_words=100,
        answer_tokens=12,
        rate=32,
        at_once=4,
    )
    plan = chats(shape, load_words(), seed=0).faster(0.01)
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    with running_engines(plan, 2, 0.01, tmp_path) as fleet:
        entries = {entry.name: entry for entry in lineup(["estimated_ttft", "round_robin"], tmp_path, [])}
        assert list(entries) == [PINNED, "ours", "ours, round_robin"]
        pinned = measure(entries[PINNED], plan, fleet, 0, tmp_path, tick)
        ours = measure(entries["ours"], plan, fleet, 0, tmp_path, tick)
        asked = asyncio.run(twice(fleet.ports[0]))
        fleet.forget()
        anew = asyncio.run(twice(fleet.ports[0]))
    assert ticks == 16
    assert (pinned.failed, ours.failed) == (0, 0)
    assert (pinned.router_cpu_ms, ours.router_cpu_ms > 0) == (0.0, True)
    # one conversation an engine: prompts of 300, 412, 524 and 636 words and a template; what comes behind the
    # one before it is computed, and of the first all
    words_asked = 300 + 412 + 524 + 636
    assert pinned.hit_rate == pytest.approx(1 - 636 / words_asked, abs=0.06)
    assert pinned.balance == pytest.approx(1.0, abs=0.03)
    # never worse than a conversation that stays where it began
    assert ours.hit_rate >= pinned.hit_rate - 0.03
    # what is asked twice is found, until the engine forgets it: 120 words and a template are 8 full blocks
    assert [heard.cached_tokens for heard in (*asked, *anew)] == [0, 128, 0, 128]
    assert all(heard.status == 200 and heard.text and heard.end is not None for heard in asked)


async def twice(port: int) -> list[Heard]:
    client = Client()
    said = [{"role": "user", "content": load_words().text("directly", 120)}]
    try:
        return [await client.chat(port, MODEL, said, 3, "user") for _ in range(2)]
    finally:
        client.close()


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\ndata: {")
    writer.close()


@pytest.mark.anyio
async def test_a_cut_answer_and_a_refused_connection_are_no_answers() -> None:
    client = Client()
    async with await asyncio.start_server(closed, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        cut = await client.chat(port, MODEL, [], 1, "user")
    refused = await client.chat(port, MODEL, [], 1, "user")
    client.close()
    assert (cut.end, cut.first, refused.end, refused.status) == (None, None, None, 0)


def test_ports_in_a_row_are_free() -> None:
    first = free_row(3, Random(5))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 2))
        # the same draw meets a port that is taken, and goes on to another
        other = free_row(3, Random(5))
    assert other != first
    assert 15_000 <= other < 30_000


def test_the_command(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    page.write_text("<!-- live:begin -->\n<!-- live:end -->\n")
    arguments = [
        "--only",
        "chats",
        "--requests",
        "16",
        "--rounds",
        "2",
        "--routers",
        "pinned",
        "--engines",
        "2",
    ]
    arguments += ["--time-scale", "0.005", "--json", str(out), "--page", str(page)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.live", *arguments], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [(row["router"], row["round"], row["requests"]) for row in document["rows"]] == [
        (PINNED, 0, 16),
        (PINNED, 1, 16),
    ]
    assert (document["engines"], document["seed"]) == (2, 0)
    assert "2 conversations × 8 turns" in document["workloads"]["chats"]
    # text and times are the same in both rounds, so are the caches' answers
    assert document["rows"][0]["hit_rate"] == document["rows"][1]["hit_rate"] > 0.8
    assert f"| {PINNED} | 0.8" in page.read_text()
