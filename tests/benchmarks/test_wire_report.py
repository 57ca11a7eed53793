"""The pages of `make bench`: figures worked out by hand from a run of round numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.wire.dynamo import FASTOKENS
from benchmarks.wire.dynamo import NAME as DYNAMO
from benchmarks.wire.processes import cpu_seconds
from benchmarks.wire.report import (
    BYTES,
    EVENTS,
    KEYS,
    OURS,
    ROOT,
    machine,
    median_rows,
    sizing,
    table,
    targets,
    write_pages,
)

KINDS = ("json_200", "json_8000", "stream_200", "stream_8000", "half_8000")


def row(json: float, chunk: float, ms: float, half: float = 3.0, idle: float = 0.0) -> dict[str, float]:
    figures = {"cpu_us_json_200": json, "cpu_us_json_8000": 10 * json, "cpu_us_chunk": chunk, "idle": idle}
    figures |= {f"{q}_ms_{kind}": ms for q in ("p50", "p99") for kind in KINDS}
    return {**figures, "p99_ms_half_8000": half, "per_second": 1000.0, "fresh_per_second": 400.0}


ROWS = {
    "direct": row(0.0, 0.0, 1.0, half=1.0),
    BYTES: row(600.0, 40.0, 1.9),
    OURS: row(700.0, 40.0, 2.0, half=5.0, idle=0.01),
    KEYS: row(850.0, 40.0, 2.0),
    EVENTS: row(700.0, 40.0, 2.0, half=8.5, idle=0.12),
    "nginx": row(100.0, 20.0, 1.1),
    "sglang-router": row(400.0, 50.0, 1.5),
    "smg": row(400.0, 50.0, 2.0),
}
TOLD = {
    "date": "2026-01-02", "cores": 2, "cpu": "a CPU", "gateway_python": "3.11.2 (9.9 ms for a loop)",
    "rounds": 3, "seconds": 5.0, "ceiling": 9000.0, "load_before": 0.1, "load_after": 2.0,
}  # fmt: skip


def test_times_are_what_a_router_adds() -> None:
    (line,) = [one for one in table(ROWS).splitlines() if one.startswith(f"| {OURS} ")]
    assert line == (
        "| ours, tokenising | 700 | 7000 | 40.0 | 1.00 / 1.00 | 1.00 / 1.00 | 1.00 / 1.00 | 1.00 / 4.00 "
        "| 1000 | 400 | 1.0 % |"
    )


def test_targets_stand_against_the_peers_of_the_run() -> None:
    assert targets(ROWS).splitlines()[2:] == [
        "| CPU a JSON request | 0.85 × sglang-router | 1.50 × | **missed** |",
        "| CPU a paced chunk | 1.0 × sglang-router | 0.80 × | kept |",
        "| CPU a JSON request | 2.5 × nginx (aim) | 6.00 × | **missed** |",
        "| CPU a paced chunk | 1.3 × nginx (aim) | 2.00 × | **missed** |",
        "| added p50 of the first byte | 0.9 × SMG | 0.90 × | kept |",
        "| added p99 of the first byte, half load, 8,000 tokens, tokenising | 5 ms | 4.00 ms | kept |",
        "| what events add to that p99, at half load | 2 ms | 3.50 ms | **missed** |",
    ]


@pytest.mark.parametrize("added", [0.0, -0.05, float("nan")])
def test_what_is_lost_in_noise_is_neither_kept_nor_missed(added: float) -> None:
    """SMG is measured no slower than the engine alone, and no CPU is left of the others' less what resting
    takes: ours stands against nothing, also where it is lost itself."""
    rows = {
        **ROWS,
        "smg": row(400.0, 50.0, 1.0 + added),
        "sglang-router": row(added, added, 1.5),
        "nginx": row(added, added, 1.1),
        DYNAMO: row(400.0, 50.0, 2.0, half=added),
    }
    for own in (rows, {**rows, BYTES: row(-1.0, -1.0, 0.9)}):
        assert targets(own).splitlines()[2:] == [
            "| CPU a JSON request | 0.85 × sglang-router | not measurable | |",
            "| CPU a paced chunk | 1.0 × sglang-router | not measurable | |",
            "| CPU a JSON request | 2.5 × nginx (aim) | not measurable | |",
            "| CPU a paced chunk | 1.3 × nginx (aim) | not measurable | |",
            "| added p50 of the first byte | 0.9 × SMG | not measurable | |",
            "| added p99 of the first byte, half load, 8,000 tokens, tokenising | 5 ms | 4.00 ms | kept |",
            "| that p99, the engines' own time in both | 0.25 × Dynamo's better one | not measurable | |",
            "| what events add to that p99, at half load | 2 ms | 3.50 ms | **missed** |",
        ]


def test_a_time_that_is_none_is_neither_kept_nor_missed() -> None:
    rows = {**ROWS, OURS: row(700.0, 40.0, 2.0, half=float("nan"))}
    assert targets(rows).splitlines()[-2:] == [
        "| added p99 of the first byte, half load, 8,000 tokens, tokenising | 5 ms | not measurable | |",
        "| what events add to that p99, at half load | 2 ms | not measurable | |",
    ]


def test_a_router_with_engines_of_its_own_keeps_their_time() -> None:
    """Ours is compared with that as it came, 5 ms of the better one's 25, and not with what it adds."""
    theirs = row(1900.0, 90.0, 2.5, half=25.0)
    del theirs["fresh_per_second"], theirs["p50_ms_json_200"], theirs["p99_ms_json_200"]
    rows = {**ROWS, DYNAMO: theirs, FASTOKENS: row(1900.0, 90.0, 2.5, half=50.0)}
    (line,) = [one for one in table(rows).splitlines() if one.startswith(f"| {DYNAMO} ")]
    assert line == (
        f"| {DYNAMO} | 1900 | 19000 | 90.0 | – | 2.50 / 2.50 whole | 2.50 / 2.50 whole | 2.50 / 25.00 whole "
        "| 1000 | – | 0.0 % |"
    )
    assert (
        "| that p99, the engines' own time in both | 0.25 × Dynamo's better one | 0.20 × | kept |"
        in targets(rows).splitlines()
    )


def test_a_row_is_the_median_of_rounds_that_all_have_it() -> None:
    rounds = [{BYTES: row(n, 1.0, 1.0), "smg": row(1.0, 1.0, 1.0)} for n in (5.0, 9.0)]
    found = median_rows([*rounds, {BYTES: row(6.0, 1.0, 1.0)}])
    assert list(found) == [BYTES]
    assert found[BYTES]["cpu_us_json_200"] == 6.0


def test_a_figure_that_one_round_lacks_is_left_out() -> None:
    part = row(7.0, 1.0, 1.0)
    del part["per_second"]
    found = median_rows([{BYTES: row(5.0, 1.0, 1.0)}, {BYTES: part}])
    assert found[BYTES]["cpu_us_json_200"] == 6.0
    assert "per_second" not in found[BYTES]


def test_the_pages_have_a_place_for_each_table(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("performance.md", "operations.md"):
        (tmp_path / "docs" / name).write_text((ROOT / "docs" / name).read_text())
    write_pages({"rows": ROWS, "machine": TOLD}, tmp_path)
    performance, operations = (
        (tmp_path / "docs" / name).read_text() for name in ("performance.md", "operations.md")
    )
    assert all(text in performance for text in (table(ROWS), targets(ROWS), machine(TOLD)))
    assert sizing(ROWS) in operations
    assert "| an API key and an access log line | 0.15 ms |" in operations
    assert "| resting, 10,000 new blocks a second | 12 % |" in operations


def test_cpu_counts_what_a_process_started_too() -> None:
    """Half a second of work in a grandchild with a session of its own."""
    work = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
    shell = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], start_new_session=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "done\n"
        spent = cpu_seconds(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
    assert spent >= 0.5
    assert cpu_seconds(os.getpid()) > 0
