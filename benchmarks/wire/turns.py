"""What a change of the gateway costs or saves: the working tree's version and that of a revision run side by
side on one core, in front of the same mock engines, and are asked in turns by the same load.

    make bench-turns AGAINST=main~3
    python -m benchmarks.wire.turns --against main~3 --rounds 20 --row tokenising

The figures are those of `make bench`: CPU by the scheduler's count, less what a version uses idle. In each
round either version is asked for each of them, one right after the other, and the next round begins with the
other one: a pair has had the same machine, so the median of the pairs' ratios says most. One process differs
from the next, so both are started anew `--starts` times. Both run on the same interpreter (BENCH_PYTHON) with
the same libraries, those that are installed. A working tree with changes is measured as it is. Nothing is
written but `--json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

from benchmarks import asked
from benchmarks.ending import in_one_line, write
from benchmarks.fleet import free_port, free_row
from benchmarks.wire.bench import (
    A_CHUNK,
    ENGINES,
    JSON_200,
    JSON_8000,
    Bench,
    Cost,
    Spent,
    Turn,
    mock_engines,
)
from benchmarks.wire.pairs import AGAINST, TREE, Round, figures, machine, order, said, shares, table
from benchmarks.wire.provenance import measured_on
from benchmarks.wire.report import ROOT
from benchmarks.wire.routers import PYTHON, Ports, Router, ours
from benchmarks.wire.versions import Commit, changed, commit_of, copied, same, unpacked

ROWS = ("bytes", "tokenising", "keys and access log")
"""Of ours in `make bench`: those that need nothing beside them, and no option that is young."""
ROUNDS, STARTS, SECONDS = 12, 4, 3.0
COSTS = (JSON_200, JSON_8000, A_CHUNK)
NAMES = {AGAINST: "the revision's gateway", TREE: "the working tree's gateway"}


@in_one_line()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", required=True, metavar="REV", help="a revision as git knows it")
    parser.add_argument("--rounds", type=asked.count, default=ROUNDS, help=f"[default: {ROUNDS}]")
    parser.add_argument(
        "--starts", type=asked.count, default=STARTS, help=f"of all rounds [default: {STARTS}]"
    )
    parser.add_argument(
        "--seconds", type=asked.seconds, default=SECONDS, help=f"of each measurement [default: {SECONDS:g}]"
    )
    parser.add_argument(
        "--cores", type=asked.cores, default="0,1", help="the versions', and that of the rest [default: 0,1]"
    )
    parser.add_argument("--row", choices=ROWS, default=ROWS[0], help="of `make bench` [default: bytes]")
    parser.add_argument("--json", type=asked.writable, help="keep every pair there")
    args = parser.parse_args(argv)
    try:
        against, head = commit_of(args.against, ROOT), commit_of("HEAD", ROOT)
    except ValueError as error:
        parser.error(f"--against: {error}")
    before, edited, alike = os.getloadavg()[0], changed(ROOT), same(against, ROOT)
    print(f"against       {against}")
    print(f"working tree  {head}{', with changes' if edited else ''}")
    if alike:
        print("the gateway is the same in both: what differs is chance, so this says what chance is")
    print(f"about {_minutes(args.rounds, args.starts, args.seconds):.1f} minutes", flush=True)
    try:
        rounds, failed = _measured(args, against)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    found, told = figures(rounds), measured_on(args.rounds, args.seconds, before)
    print("", machine(told, args.row, min(args.starts, args.rounds)), "", table(found), sep="\n")
    if any(failed.values()):
        print(f"\nrequests that failed: {failed[AGAINST]} against, {failed[TREE]} of the working tree")
    if args.json is not None:
        document = {
            "machine": told,
            "row": args.row,
            "starts": args.starts,
            "against": {"revision": args.against, **asdict(against)},
            "tree": {**asdict(head), "changed": edited, "same": alike},
            "failed": failed,
            "figures": {name: asdict(one) for name, one in found.items()},
            "rounds": rounds,
        }
        write(args.json, json.dumps(document, indent=1) + "\n")
    return 0


def _minutes(rounds: int, starts: int, seconds: float) -> float:
    """A stream goes on for two seconds after the last has begun; a start, warm, is some twelve."""
    return (rounds * 2 * (len(COSTS) * seconds + 3) + min(starts, rounds) * 12) / 60


class Unanswered(Exception):
    """A version answered no request of a kind."""

    def __init__(self, who: str, cost: Cost, spent: Spent) -> None:
        super().__init__(f"{NAMES[who]} answered none of {spent.failed} requests ({cost.name})")
        self.who = who


def _measured(args: argparse.Namespace, against: Commit) -> tuple[list[Round], dict[str, int]]:
    """Pairs by round and figure, and how many requests of either version failed. Raises RuntimeError where
    one does not start, or does not answer."""
    engines = [free_port() for _ in range(ENGINES)]
    events = [free_port() for _ in engines]
    found: list[Round] = []
    failed = {AGAINST: 0, TREE: 0}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        sources = {
            AGAINST: unpacked(against, ROOT, folder / "revision"),
            TREE: copied(ROOT, folder / "working-tree"),
        }
        benches: dict[str, Bench] = {}
        routers: dict[str, Router] = {}
        for who, source in sources.items():
            ports, scratch = Ports(engines, events, free_row(2, Random()), free_port()), folder / who
            scratch.mkdir()
            benches[who] = Bench(args.seconds, ports, scratch, args.cores)
            routers[who] = version(who, source, ports, scratch, args.row)
        stack.enter_context(mock_engines(benches[TREE].ports, args.cores[1], folder))
        for numbers in shares(args.rounds, args.starts):
            with ExitStack() as running:
                turns = {
                    who: running.enter_context(benches[who].started(routers[who]))
                    for who in order(len(found))
                }
                try:
                    for pairs in _asked(turns, numbers, failed):
                        print(said(len(found), args.rounds, pairs), flush=True)
                        found.append(pairs)
                except Unanswered as error:
                    raise RuntimeError(f"{error}; it said: {benches[error.who].said()}") from None
    return found, failed


def version(who: str, source: Path, ports: Ports, scratch: Path, row: str) -> Router:
    """Our gateway of the source below a folder. Raises RuntimeError where another one would run."""
    # no folder that a program is started in comes before that one
    settings = ["env", f"PYTHONPATH={source}", "PYTHONSAFEPATH=1"]
    ask = [*settings, PYTHON, "-c", "import gateway; print(gateway.__file__)"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    if not Path(found.stdout.strip()).is_relative_to(source):
        raise RuntimeError(f"{PYTHON} would not run what is in {source}: {found.stdout}{found.stderr}")
    known = next(router for router in ours(ports, scratch) if router.name == f"ours, {row}")
    return replace(known, name=NAMES[who], command=[*settings, *known.command])


def _asked(turns: Mapping[str, Turn], numbers: Sequence[int], failed: dict[str, int]) -> Iterator[Round]:
    """These rounds. Raises Unanswered."""
    for turn in turns.values():
        turn.warm_up()
    idle = {who: turn.resting() for who, turn in turns.items()}
    for number in numbers:
        pairs: dict[str, dict[str, float]] = {}
        for kind, cost in enumerate(COSTS, 1):
            pair: dict[str, float] = {}
            # prompts that neither has seen, the same for both
            first = kind * 1_000_000 + number * cost.prompts
            for who in order(number):
                spent = turns[who].cost(cost, idle[who], first=first)
                if not spent.answered:
                    raise Unanswered(who, cost, spent)
                failed[who] += spent.failed
                pair[who] = spent.us
            pairs[cost.name] = pair
        yield pairs


if __name__ == "__main__":
    sys.exit(main())
