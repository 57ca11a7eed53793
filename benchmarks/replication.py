"""The pages about replicas, measured anew: everything killed with load on, a million blocks, bytes a block.

    make replication-study          (or python -m benchmarks.replication [--rounds 5])

Runs tests/heavy/test_chaos.py, tests/heavy/test_joining.py and benchmarks.redis_memory one after the other
(about a quarter of an hour), prints the tables and which bounds were met, keeps the samples in
benchmarks/results/replication.json, and writes the tables into docs/results-replication.md and docs/redis.md,
with what else the machine was doing; fewer rounds than five do so only if `--page` asks for it. `--report`
writes the pages from the samples there are. Where a test failed, it says which, the exit code is 1, and the
pages stay as they were.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import asked
from benchmarks.children import child
from benchmarks.ending import in_one_line, write
from benchmarks.live.report import machine
from benchmarks.replay.page import write_between
from benchmarks.replication_tables import Row, cpu, loading, requests, sizing, state, times, verdicts

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "replication.json"
ROUNDS = 5
TESTS = ("tests/heavy/test_chaos.py", "tests/heavy/test_joining.py")


def write_pages(document: Row, root: Path = ROOT) -> None:
    rows, memory, told = document["rounds"], document["memory"], document["machine"]
    write_between(
        root / "docs" / "results-replication.md",
        {"requests": requests(rows), "cpu": cpu(rows), "times": times(rows), "machine": state(told)},
    )
    write_between(root / "docs" / "redis.md", {"sizing": sizing(memory), "loading": loading(memory, told)})


def compact(document: Row) -> str:
    """JSON, a line a round."""
    rounds = ",\n".join(json.dumps(row) for row in document["rounds"])
    rest = json.dumps({**document, "rounds": []}, indent=1)
    return rest.replace('"rounds": []', f'"rounds": [\n{rounds}\n]') + "\n"


def play(command: Sequence[str], env: dict[str, str]) -> list[str]:
    """Runs pytest, shows what it says, and gives the tests that failed, each with its reason."""
    failed = []
    # interrupted, it ends the servers of its tests, which are in sessions of their own, too
    with child(
        command, first=signal.SIGINT, patience=60, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                failed.append(line.partition(" ")[2].strip())
        process.wait()
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
        command = [sys.executable, "-m", "benchmarks.redis_memory", "--json", str(memory)]
        with child(command, cwd=ROOT) as measuring:
            if code := measuring.wait():
                raise subprocess.CalledProcessError(code, command)
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


@in_one_line()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=asked.count, default=ROUNDS, help="of each scenario")
    parser.add_argument("--page", action="store_true", help="keep fewer rounds, too, and write the pages")
    parser.add_argument("--report", action="store_true", help="write the pages from the samples there are")
    options = parser.parse_args()
    kept = options.report or options.page or options.rounds >= ROUNDS
    if not kept:
        print(f"fewer rounds than {ROUNDS}, so no page and no kept result is written: --page writes them")
    document = json.loads(RESULTS.read_text()) if options.report else measure(options.rounds)
    if kept:
        write(RESULTS, compact(document))
    rows = document["rounds"]
    print(requests(rows), cpu(rows), times(rows), sizing(document["memory"]), sep="\n\n")
    print(f"\n{loading(document['memory'], document['machine'])}")
    print("", *verdicts(rows), sep="\n")
    for line in document["failures"]:
        print(f"FAILED {line}")
    if document["failures"]:
        sys.exit(1)
    if kept:
        write_pages(document)


if __name__ == "__main__":
    main()
