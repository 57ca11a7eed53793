"""The pages about replicas, measured anew: everything killed with load on, a million blocks, bytes a block.

    make replication-study          (or python -m benchmarks.replication [--rounds 5])

Runs tests/heavy/test_chaos.py, tests/heavy/test_joining.py and benchmarks.redis_memory one after the other
(half an hour), prints the tables, keeps all samples in benchmarks/results/replication.json, writes the
tables into docs/results-replication.md and docs/redis.md, with what else the machine was doing. `--report`
writes the pages from the samples that are there. Where a test failed, it says which, the exit code is 1, and
the pages stay as they were.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.live.report import machine
from benchmarks.replay.page import write_between

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "replication.json"
TESTS = ("tests/heavy/test_chaos.py", "tests/heavy/test_joining.py")
WIDTH = 115
"""Of a page's lines."""
JOINING = "a replica joins 1,000,000 blocks"

TIMES = (
    ("replica killed", "load_gone_s", "a killed replica's load vanishes on the others", 3.0),
    ("replica killed", "writers_again_s", "its writer's duties are taken over", 10.0),
    ("one replica cut off from Redis", "load_gone_s", "load of a replica cut off from Redis vanishes", 3.0),
    ("one replica cut off from Redis", "converged_s", "sharing again after that cut was healed", 5.0),
    ("Redis killed", "converged_s", "sharing again after a killed Redis answers", 5.0),
    ("Redis stalled", "converged_s", "sharing again after a stalled Redis goes on", 5.0),
    (
        "FLUSHALL, workers by agents",
        "registered_again_s",
        "all agents registered again after FLUSHALL",
        5.0,
    ),
    ("Sentinel: master killed", "converged_s", "sharing again after Sentinel has named a master", 5.0),
    (
        "Cluster: a master killed and back",
        "converged_s",
        "sharing again after the cluster counts a master in again",
        5.0,
    ),
    (JOINING, "ready_s", "a new replica has loaded 1,000,000 blocks and is ready, by the clock", 30.0),
    (JOINING, "cpu_s", "the same in seconds of its own core, start of the process included", 30.0),
)
"""Scenario, figure, in words, and the bound in seconds."""


def requests(rows: Iterable[Row]) -> str:
    """Each scenario's rounds, requests, answers other than 200, and what the trouble added to p99."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "answers" in row:
            groups.setdefault(row["scenario"], []).append(row)
    lines = [
        "| what was lost | rounds | requests | other answers than 200 | p99 before, ms | added, ms |",
        "|---|--:|--:|---|--:|--:|",
    ]
    for scenario, own in groups.items():
        other: dict[str, int] = {}
        for row in own:
            for status, count in row["answers"].items():
                if status != "200":
                    other[status] = other.get(status, 0) + count
        said = ", ".join(
            f"{count} broken off" if status == "0" else f"{count} × {status}"
            for status, count in sorted(other.items())
        )
        calm = [row["calm_p99_ms"] for row in own]
        added = [row["rough_p99_ms"] - row["calm_p99_ms"] for row in own]
        total = sum(row["requests"] for row in own)
        lines.append(
            f"| {scenario} | {len(own)} | {total} | {said or 'none'} | {_range(calm)} | {_range(added)} |"
        )
    return "\n".join(lines)


def times(rows: Sequence[Row]) -> str:
    """What was measured against its bound."""
    lines = ["| | measured, s | bound | kept |", "|---|--:|--:|---|"]
    for scenario, figure, words, bound in TIMES:
        values = [row[figure] for row in rows if row["scenario"] == scenario and figure in row]
        if values:
            kept = sum(value <= bound for value in values)
            word = "yes" if kept == len(values) else f"{kept} of {len(values)} times"
            lines.append(f"| {words} | {_range(values)} | {bound:g} | {word} |")
    return "\n".join(lines)


def sizing(memory: Row) -> str:
    """Bytes a block."""
    return "\n".join(
        (
            "| | bytes a block |",
            "|---|--:|",
            f"| Redis, `held` | {memory['held']:.0f} |",
            f"| Redis, `names` | {memory['names']:.0f} |",
            f"| Redis, `changes` (bounded, {memory['stream_bytes'] / 1e6:.0f} MB at most here) "
            f"| {memory['stream']:.0f} |",
            f"| Redis, all that the server uses more | {memory['redis']:.0f} |",
            f"| a mirror: what the process uses more | {memory['mirror']:.0f} |",
        )
    )


def loading(memory: Row, told: Row) -> str:
    return fill(
        f"A mirror loads these {memory['blocks']:,} blocks in {memory['loaded_s']:.0f} s "
        f"({memory['loaded_cpu_s']:.0f} s of CPU); a request that comes meanwhile waits for its turn at most "
        f"{memory['longest_wait_ms']:.0f} ms. {state(told)}",
        width=WIDTH,
    )


def state(told: Row) -> str:
    """What the figures were taken on, in a sentence."""
    before, after = told["load_before"], told["load_after"]
    return (
        f"Measured on {told['cores']} cores ({told['cpu']}), Python {told['python']}, {told['server']}; load "
        f"average {before:.1f} before and {after:.1f} at the end."
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} – {high}"


def write_pages(document: Row, root: Path = ROOT) -> None:
    rows, memory, told = document["rounds"], document["memory"], document["machine"]
    write_between(
        root / "docs" / "results-replication.md",
        {"requests": requests(rows), "times": times(rows), "machine": state(told)},
    )
    write_between(root / "docs" / "redis.md", {"sizing": sizing(memory), "loading": loading(memory, told)})


def play(command: Sequence[str], env: dict[str, str]) -> list[str]:
    """Runs pytest, shows what it says, and gives the tests that failed, each with its reason."""
    failed = []
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                failed.append(line.partition(" ")[2].strip())
    if process.returncode and not failed:
        failed.append(f"pytest ended with {process.returncode}")
    return failed


def measure(rounds: int) -> Row:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        lines, memory = Path(folder) / "rounds", Path(folder) / "memory"
        lines.touch()
        env = {**os.environ, "CHAOS_ROUNDS": str(rounds), "CHAOS_RESULTS": str(lines)}
        command = [sys.executable, "-m", "pytest", "-m", "heavy", "-v", "-rfE", "--tb=short", *TESTS]
        failed = play(command, env)
        subprocess.run(
            [sys.executable, "-m", "benchmarks.redis_memory", "--json", str(memory)], cwd=ROOT, check=True
        )
        return {
            "date": time.strftime("%Y-%m-%d"),
            "machine": {
                **machine(),
                "server": json.loads(memory.read_text())["server"],
                "load_before": round(before, 1),
                "load_after": round(os.getloadavg()[0], 1),
            },
            "rounds": [json.loads(line) for line in lines.read_text().splitlines()],
            "failures": failed,
            "memory": json.loads(memory.read_text()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each scenario")
    parser.add_argument("--report", action="store_true", help="write the pages from the samples there are")
    options = parser.parse_args()
    document = json.loads(RESULTS.read_text()) if options.report else measure(options.rounds)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(requests(document["rounds"]), times(document["rounds"]), sizing(document["memory"]), sep="\n\n")
    print(f"\n{loading(document['memory'], document['machine'])}")
    for line in document["failures"]:
        print(f"FAILED {line}")
    if document["failures"]:
        sys.exit(1)
    write_pages(document)


if __name__ == "__main__":
    main()
