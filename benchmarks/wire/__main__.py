"""What a router costs: CPU a request, CPU a streamed chunk, and what it adds to the first byte.

    make bench                     ours, and each peer that is installed, in turn, in the same run
    python -m benchmarks.wire --seconds 5 --only ours,nginx

The router runs alone on one core; four mock engines and the load generator share another. CPU is the
scheduler's own count of the router's processes (`/proc/PID/task/*/schedstat`), less what it uses idle: a slow
generator changes nothing about it. Latency is open loop at a low rate, against the same requests sent to an
engine directly. Every figure is the median over `--rounds` turns, and routers take turns within a round.
A whole run goes to benchmarks/results/wire.json and into docs/performance.md and docs/operations.md. One with
`--only`, with fewer rounds or seconds than usual, or with `--json` does so only if `--page` asks for it.
BENCH_PYTHON names the interpreter of our gateway, BENCH_PEERS the folder of the peers' environments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Protocol

from benchmarks import asked
from benchmarks.ending import in_one_line, write
from benchmarks.fleet import free_port, free_row
from benchmarks.wire.bench import ENGINES, Bench, Figures, mock_engines
from benchmarks.wire.dynamo import dynamo
from benchmarks.wire.provenance import measured_on
from benchmarks.wire.report import BYTES, machine, median_rows, table, targets, write_pages
from benchmarks.wire.routers import (
    PEERS,
    Ports,
    Router,
    bare,
    installed_peers,
    missing,
    ours,
)

RESULTS = Path("benchmarks/results/wire.json")
SECONDS, ROUNDS = 5.0, 3


class Measuring(Protocol):
    def measure(self, router: Router | None, known: Figures | None = None) -> Figures: ...


def play(bench: Measuring, routers: list[Router], rounds: int) -> list[dict[str, Figures]]:
    """One row a router in each round; one that failed in any of its parts has none."""
    found = []
    for n in range(rounds):
        rows, failed = {"direct": bench.measure(None)}, set[str]()
        for router in routers:
            if router.name in failed:
                continue
            print(f"round {n + 1} of {rounds}: {router.name}", flush=True)
            try:
                rows[router.name] = bench.measure(router, rows.get(router.name))
            except RuntimeError as error:
                print(f"  left out: {error}")
                failed.add(router.name)
        found.append({name: row for name, row in rows.items() if name not in failed})
    return found


def chosen(text: str, routers: Sequence[Router], not_here: Sequence[str]) -> list[Router]:
    """Those whose names begin as `text` says, all where it is empty. Raises ValueError for a beginning of no
    name, and where nothing remains; what is `not_here` is known, too."""
    wanted = [name.strip().replace(";", ",") for name in text.split(",") if name.strip()]
    asked.beginnings(wanted, [*(router.name for router in routers), *not_here])
    kept = [r for r in routers if not wanted or r.name.startswith(tuple(wanted))]
    if not kept:
        raise ValueError(f"{text} is not here")
    return kept


@in_one_line()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=asked.seconds, default=SECONDS, help="of each measurement")
    parser.add_argument("--rounds", type=asked.count, default=ROUNDS)
    parser.add_argument(
        "--cores",
        type=asked.cores,
        default="0,1",
        help="the router's (0-2 are several), and another one for the rest",
    )
    parser.add_argument(
        "--only", default="", help="comma-separated beginnings of names, ; for a comma in one"
    )
    parser.add_argument("--json", type=asked.writable, help=f"[default: {RESULTS}, of a whole run]")
    parser.add_argument("--page", action="store_true", help="keep a smaller run, too, and write the pages")
    parser.add_argument("--report", action="store_true", help="write the pages from the figures there are")
    args = parser.parse_args(argv)
    if args.report:
        figures = args.json or RESULTS
        if not figures.exists():
            parser.error(f"--report: there are no figures in {figures}")
        write_pages(json.loads(figures.read_text()))
        return 0
    whole = not args.only and args.rounds >= ROUNDS and args.seconds >= SECONDS
    out = asked.output(args.json, RESULTS, whole=whole, page=args.page)
    before = os.getloadavg()[0]
    router_cores, other_core = args.cores
    two_cores = _two_cores(router_cores, other_core)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch, engines = Path(folder), [free_port() for _ in range(ENGINES)]
        # peers are told to export their metrics a few ports on
        ports = Ports(engines, [free_port() for _ in engines], free_row(5, Random()), free_port())
        routers = [
            *ours(ports, scratch, two_cores),
            bare(ports),
            *installed_peers(ports.engines, ports.public, scratch),
            *dynamo(PEERS, ports.public, scratch),
        ]
        not_here = missing(routers)
        try:
            routers = chosen(args.only, routers, not_here)
        except ValueError as error:
            parser.error(f"--only: {error}; not installed: {'; '.join(not_here) or 'none'}")
        if not two_cores:
            print("no third core, so not measured: two processes on two cores")
        print(f"not installed, so not measured: {'; '.join(not_here) or 'none'}")
        if out.result is None:
            print(asked.PART)
        stack.enter_context(mock_engines(ports, other_core, scratch))
        rows = median_rows(
            play(Bench(args.seconds, ports, scratch, (router_cores, other_core)), routers, args.rounds)
        )
    if len(rows) == 1:
        print("no router could be measured in every round")
        return 1
    document = {
        "machine": {
            **measured_on(args.rounds, args.seconds, before),
            "ceiling": rows["direct"]["per_second"],
        },
        "rows": rows,
    }
    if out.result is not None:
        write(out.result, json.dumps(document, indent=1) + "\n")
    print(machine(document["machine"]), table(rows), sep="\n\n")
    if BYTES in rows:
        print(f"\n{targets(rows)}")
    if out.pages:
        write_pages(document)
    return 0


def _two_cores(router_cores: str, other_core: str) -> str:
    """The router's core and one that nobody has, for `taskset`; empty where all are taken."""
    spare = os.sched_getaffinity(0) - {*asked.span(router_cores), int(other_core)}
    return f"{router_cores},{min(spare)}" if spare else ""


if __name__ == "__main__":
    sys.exit(main())
