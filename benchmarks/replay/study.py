"""The routing study: ``python -m benchmarks.replay.study`` computes what docs/routing-study.md says.

Every experiment's rows go to a JSON file with a plot beside it (docs/results/routing), all tables to the page
there, and those that matter between the markers of docs/routing-study.md. Points are computed one a process,
the longest first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.ending import in_one_line, undisturbed, write
from benchmarks.replay.aggregate import alike, grouped
from benchmarks.replay.cases import HINDSIGHT, Case, Row, Source, limits_of, run_case, with_ceilings
from benchmarks.replay.grid import DEFAULT, Experiment, full, quick
from benchmarks.replay.page import tables, write_between
from benchmarks.replay.pool import completed
from benchmarks.replay.provenance import Origin, merged, this_machine
from benchmarks.replay.report import draw, number, scatter

DOCS = Path(__file__).parent.parent.parent / "docs"
RESULTS = DOCS / "results/routing"
Task = tuple[str, int, Source, list[Case]]
"""Experiment, place in it, what to replay."""


def tasks(experiments: Mapping[str, Experiment]) -> list[Task]:
    """Those that take longest first, so that none of them ends alone."""
    found = [
        (name, place, source, cases)
        for name, experiment in experiments.items()
        for place, (source, cases) in enumerate(experiment.points())
    ]
    return sorted(found, key=lambda task: -len(task[3]) * (task[2].limit or 10_000))


def run_point(source: Source, cases: list[Case], known: list[Row] | None = None) -> list[Row]:
    """`known` are rows that need not be computed again. Raises ValueError, OSError."""
    content = source.content()
    by_case = {case_of(row): row for row in known or []}
    rows = [by_case.get(case_of(asdict(case))) or run_case(content, case) for case in cases]
    return with_ceilings(rows, limits_of(content, cases))


def known_rows(out: Path, experiments: Mapping[str, Experiment], again: str | None) -> dict[str, list[Row]]:
    """What earlier runs left, but for policies whose names begin with `again` (None: for none), for hindsight
    where the default is one of them, for its forecast begins with a run of that, and for rows of more or
    fewer requests than are replayed now."""
    renewed = () if again is None else (again, HINDSIGHT) if DEFAULT.startswith(again) else (again,)
    found: dict[str, list[Row]] = {}
    for name, experiment in experiments.items():
        limit = experiment.source.limit
        found[name] = [
            row
            for row in read_rows(out / f"{name}.json")
            if not str(row["policy"]).startswith(renewed) and limit in (None, _asked(row))
        ]
    return found


def beside_rows(out: Path, wanted: Mapping[str, Experiment]) -> dict[str, list[Row]]:
    """What earlier runs left of the experiments beside which the wanted ones stand, where they are not wanted
    themselves."""
    names = {one.beside for one in wanted.values() if one.beside} - set(wanted)
    return {name: read_rows(out / f"{name}.json") for name in names}


def in_one_piece(experiment: Experiment, own: Sequence[Row], other: Sequence[Row]) -> list[Row]:
    """What the default does without slices at the points of an experiment with them; `other` are rows of the
    one that it stands beside."""
    if not experiment.slice_after_s:
        return []
    return [row for row in alike(own, other) if row["policy"] == DEFAULT]


def read_rows(path: Path) -> list[Row]:
    return msgspec.json.decode(path.read_bytes(), type=list[Row]) if path.exists() else []


def complete(out: Path, experiments: Mapping[str, Experiment]) -> dict[str, list[Row]]:
    """Of those of which earlier runs left every row, these, in order."""
    found: dict[str, list[Row]] = {}
    for name, rows in known_rows(out, experiments, None).items():
        by_case = {case_of(row): row for row in rows}
        asked = [case_of(asdict(case)) for _source, cases in experiments[name].points() for case in cases]
        if all(case in by_case for case in asked):
            found[name] = [by_case[case] for case in asked]
    return found


def missing(experiment: Experiment, known: Sequence[Row]) -> int:
    """How many of its rows have to be computed."""
    there = {case_of(row) for row in known}
    return sum(case_of(asdict(case)) not in there for _source, cases in experiment.points() for case in cases)


def known_origins(path: Path) -> list[Origin]:
    return msgspec.json.decode(path.read_bytes(), type=list[Origin]) if path.exists() else []


def _asked(row: Row) -> int:
    return round(number(row, "requests") + (number(row, "refused") if "refused" in row else 0))


def case_of(row: Mapping[str, object]) -> tuple[object, ...]:
    names = ("policy", "workers", "blocks_per_worker", "rate", "profile", "replicas", "shared", "seed")
    return *(row[name] for name in names), row.get("max_ttft_s", 0.0), row.get("slice_after_s", 0.0)


def run_all(
    experiments: Mapping[str, Experiment], jobs: int, known: Mapping[str, list[Row]] | None = None
) -> Generator[tuple[str, int, list[Row]]]:
    asked = tasks(experiments)
    arguments = [(source, cases, (known or {}).get(name)) for name, _place, source, cases in asked]
    with closing(completed(run_point, arguments, jobs, anew=True)) as done:
        for number, rows in done:
            name, place, _source, _cases = asked[number]
            yield name, place, rows


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1)
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, help="Processes.")
@click.option("--quick", "small", is_flag=True, help="A few short experiments, to see that all is in order.")
@click.option(
    "--out",
    "given",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for everything.  [default: docs/results/routing]",
)
@click.option("--again", default="", help="Only policies whose names begin so; the others' rows are kept.")
@click.option("--missing", "lacking", is_flag=True, help="Only rows that are not there; all others are kept.")
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Tables go between its markers.",
)
@in_one_line()
def main(
    names: tuple[str, ...],
    jobs: int,
    small: bool,
    given: Path | None,
    again: str,
    lacking: bool,
    page: Path | None,
) -> None:
    """Run the experiments NAMES, all where none is named. With all of them, and no --out, the study's page is
    written too; with some of them, their own files alone."""
    known = quick() if small else full()
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no experiment {', '.join(unknown)}; there are {', '.join(known)}")
    if small and given is None:
        raise click.UsageError(f"--quick needs --out: its short experiments are none for {RESULTS}")
    wanted = {name: known[name] for name in names or known}
    if again and not any(policy.startswith(again) for one in wanted.values() for policy in one.policies):
        raise click.UsageError(f"--again: no policy of these begins with {again!r}")
    if again and lacking:
        raise click.UsageError("--again computes what is there, --missing what is not: one of them")
    whole, out = set(wanted) == set(known), given or RESULTS
    if page is None and whole and given is None:
        page = DOCS / "routing-study.md"
    began = perf_counter()
    kept = complete(out, wanted) if lacking else {}
    running = {name: one for name, one in wanted.items() if name not in kept}
    found: dict[str, dict[int, list[Row]]] = {name: {} for name in running}
    before = known_rows(out, running, None if lacking else again)
    computed = [name for name in running if missing(running[name], before[name])]
    finished: list[str] = []
    console = Console(file=sys.stderr)
    try:
        with (
            Progress(console=console, disable=not console.is_terminal) as bar,
            closing(run_all(running, jobs, before)) as points,
        ):
            shown = bar.add_task("points", total=len(tasks(running)))
            for name, place, rows in points:
                found[name][place] = rows
                bar.advance(shown)
                if len(found[name]) == len(running[name].points()):
                    with undisturbed():
                        _save(out, name, _in_order(found[name]))
                        finished.append(name)
    except KeyboardInterrupt:
        said = f"experiments that are finished, and in {out}: {len(finished)} of {len(running)}"
        raise KeyboardInterrupt(f"{said}; the others are as they were") from None
    finally:
        origins = known_origins(out / "machine.json")
        if own := [name for name in computed if name in finished]:
            partly = [name for name in own if lacking and before[name]]
            origins = merged(origins, this_machine(own, again, jobs, perf_counter() - began), partly)
        write(out / "machine.json", msgspec.json.format(msgspec.json.encode(origins)) + b"\n")
    rows_of = kept | {name: _in_order(parts) for name, parts in found.items()} | beside_rows(out, wanted)
    for name, one in running.items():
        if compared := in_one_piece(one, rows_of[name], rows_of.get(one.beside, ())):
            draw([*rows_of[name], *compared], out / f"{name}.png")
    texts = tables(wanted, rows_of, origins)
    if whole or given is not None:
        everything = "\n\n".join(f"## {marker}\n{text}" for marker, text in texts.items())
        write(out / "tables.md", f"# All tables of the routing study\n\n{everything}\n")
    if page is not None:
        write_between(page, texts)
    click.echo(f"results and tables are in {out}" + (f", and in {page}" if page is not None else ""))


def _in_order(parts: Mapping[int, list[Row]]) -> list[Row]:
    return [row for place in sorted(parts) for row in parts[place]]


def _save(out: Path, name: str, rows: list[Row]) -> None:
    lines = b",\n".join(msgspec.json.encode(row) for row in rows)
    write(out / f"{name}.json", b"[\n" + lines + b"\n]\n")
    (draw if len(grouped(rows)) > 1 else scatter)(rows, out / f"{name}.png")


if __name__ == "__main__":
    main()
