"""Many cases of one trace, over several processes where there are cores."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.replay.cases import Case, Row, Source, limits_of, run_case, with_ceilings
from benchmarks.replay.content import Content
from benchmarks.replay.pool import completed
from benchmarks.replay.size import check_fleet, check_words


def run_cases(source: Source, cases: Sequence[Case], jobs: int = 1) -> list[Row]:
    """Rows in the order of the cases, ceilings and floors filled in. Raises ValueError."""
    for case in cases:
        check_fleet(case)
    content = source.content()
    for case in cases:
        check_words(content, case)
    with closing(_rows(source, content, cases, jobs)) as computed:
        rows = list(_with_bar(computed, cases, content))
    by_number = [row for _number, row in sorted(rows, key=lambda pair: pair[0])]
    return with_ceilings(by_number, limits_of(content, cases))


def _rows(source: Source, content: Content, cases: Sequence[Case], jobs: int) -> Generator[tuple[int, Row]]:
    if jobs <= 1:
        for number, case in enumerate(cases):
            yield number, run_case(content, case)
        return
    # every process reads the trace once and takes every jobs-th case
    jobs = min(jobs, len(cases))
    shares = [[(number, cases[number]) for number in range(job, len(cases), jobs)] for job in range(jobs)]
    with closing(completed(_share, [(source, share) for share in shares], jobs)) as done:
        for _job, rows in done:
            yield from rows


def _share(source: Source, share: list[tuple[int, Case]]) -> list[tuple[int, Row]]:
    content = source.content()
    return [(number, run_case(content, case)) for number, case in share]


def _with_bar(
    rows: Iterable[tuple[int, Row]], cases: Sequence[Case], content: Content
) -> Iterator[tuple[int, Row]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{content.trace.name}: {len(content.trace.requests)} requests", total=len(cases))
        for row in rows:
            bar.advance(task)
            yield row
