"""Whether the routing study's kept rows still come out of the code, to the last digit: a sample is computed
anew.

    make replay-check                         of every experiment two rows, the default's and another one
    python -m benchmarks.replay.recheck foresight --rows 12 --seed 3

Which rows is drawn by `--seed`; the same seed draws the same ones. A row that differs is named with its
fields, and the exit code is 1: `python -m benchmarks.replay.study` with its experiment and ``--again POLICY``
computes it anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.ending import in_one_line
from benchmarks.replay.cases import Case, Row, Source, run_case
from benchmarks.replay.grid import DEFAULT, Experiment, full
from benchmarks.replay.pool import completed
from benchmarks.replay.study import RESULTS, case_of, read_rows

ROWS = 2
"""Of each experiment."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A row as it was kept, and what it is computed from."""

    experiment: str
    source: Source
    case: Case
    row: Row

    def __str__(self) -> str:
        case = self.case
        point = f"{case.blocks_per_worker} blocks, {case.rate:g}/s, seed {case.seed}"
        return f"{self.experiment}: {case.policy}, {point}"


def kept_rows(experiments: Mapping[str, Experiment], out: Path) -> dict[str, list[Kept]]:
    """By experiment, in its order, those that have a row."""
    found: dict[str, list[Kept]] = {}
    for name, experiment in experiments.items():
        rows = {case_of(row): row for row in read_rows(out / f"{name}.json")}
        found[name] = [
            Kept(name, source, case, rows[key])
            for source, cases in experiment.points()
            for case in cases
            if (key := case_of(asdict(case))) in rows
        ]
    return found


def sample(kept: Sequence[Kept], count: int, random: Random) -> list[Kept]:
    """`count` of an experiment's rows, or all: one of the default's, which changes most, then others."""
    own = [one for one in kept if one.case.policy == DEFAULT]
    first = random.sample(own, min(1, len(own), count))
    others = [one for one in kept if one not in first]
    return first + random.sample(others, min(count - len(first), len(others)))


def differing(kept: Kept) -> dict[str, tuple[object, object]]:
    """Fields of the row, kept and as computed now, where these are not the same. Ceilings belong to a point,
    not to a row, and are not computed. Raises ValueError, OSError."""
    now = run_case(kept.source.content(), kept.case)
    return {
        name: (kept.row[name], now[name]) for name in now if name in kept.row and kept.row[name] != now[name]
    }


def _all(kept: Sequence[Kept], jobs: int) -> Generator[tuple[Kept, dict[str, tuple[object, object]]]]:
    with closing(completed(differing, [(one,) for one in kept], jobs, anew=True)) as done:
        for number, fields in done:
            yield kept[number], fields


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1)
@click.option("--rows", type=click.IntRange(min=1), default=ROWS, help="Of each experiment.")
@click.option("--seed", type=int, default=0, help="Draws which.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, help="Processes.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=RESULTS,
    show_default="docs/results/routing",
    help="Where the rows are kept.",
)
@in_one_line()
def main(names: tuple[str, ...], rows: int, seed: int, jobs: int, out: Path) -> None:
    """Compute a sample of the kept rows of the experiments NAMES anew, of all where none is named."""
    known = full()
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no experiment {', '.join(unknown)}; there are {', '.join(known)}")
    random = Random(seed)
    kept = kept_rows({name: known[name] for name in names or known}, out)
    if empty := [name for name, of_it in kept.items() if not of_it]:
        raise click.ClickException(
            f"{out} has no rows of {', '.join(empty)}: make replay-study computes them"
        )
    drawn = [one for of_it in kept.values() for one in sample(of_it, rows, random)]
    console, stale, compared = Console(file=sys.stderr), 0, 0
    try:
        with (
            Progress(console=console, disable=not console.is_terminal) as bar,
            closing(_all(drawn, jobs)) as rows_now,
        ):
            shown = bar.add_task("rows", total=len(drawn))
            for one, fields in rows_now:
                bar.advance(shown)
                compared += 1
                if fields:
                    stale += 1
                    click.echo(f"{one}: {', '.join(_said(name, *pair) for name, pair in fields.items())}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{compared} of {len(drawn)} rows were compared, {stale} differ") from None
    if stale:
        raise click.ClickException(f"{stale} of {len(drawn)} kept rows do not come out of the code any more")
    click.echo(f"{len(drawn)} rows of {len(kept)} experiments come out as they were kept")


def _said(name: str, kept: object, now: object) -> str:
    return f"{name} {kept} kept, {now} now"


if __name__ == "__main__":
    main()
