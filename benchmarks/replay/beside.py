"""The same fleets with other engines, or with prompts in slices: what that gains, and against which floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.replay.aggregate import Line, Point, grouped, lines, only
from benchmarks.replay.cases import FLOOR, Row
from benchmarks.replay.grid import BALANCED, DEFAULT, PATIENT, THRESHOLD
from benchmarks.replay.report import markdown, number

Fleet = tuple[int, float]
"""Blocks a worker, requests a second."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a table: how the default, or a variant of it, does there."""

    fleet: Fleet
    profile: str
    line: Line
    floor: Line
    """That of the same engines."""
    first: Line
    """That of the fleet's first line."""
    patient: Line | None


Column = tuple[str, Callable[[Entry], str]]


@dataclass(frozen=True, slots=True)
class Sort:
    """What tells the lines of one fleet apart."""

    policies: Sequence[str]
    """Those that have lines of their own."""
    columns: Sequence[Column]


_FLEET: Sequence[Column] = (
    ("blocks", lambda x: str(x.fleet[0])),
    ("rate", lambda x: f"{x.fleet[1]:g}"),
)
_P99: Sequence[Column] = (
    ("floor p99 s", lambda x: f"{x.floor.p99_s:.2f}"),
    ("× floor p99", lambda x: f"{x.line.p99_x:.2f}"),
    ("its seeds", lambda x: f"{x.line.p99_low:.2f}…{x.line.p99_high:.2f}"),
)
_P50: Column = ("× floor p50", lambda x: f"{x.line.p50_x:.2f}")
_REST: Sequence[Column] = (
    ("busiest/mean", lambda x: f"{x.line.balance:.2f}"),
    ("TPOT p99 ms", lambda x: f"{1e3 * x.line.tpot_p99_s:.0f}"),
)
ENGINES = Sort(
    (DEFAULT,),
    (
        *_FLEET,
        ("threshold", lambda x: x.profile.partition(THRESHOLD)[2] or "none"),
        *_P99,
        # the same seeds, and means of both are geometric: so this is the mean of what it is within a seed
        ("× floor p99 of the first line", lambda x: f"{x.line.p99_s / x.first.p99_s:.2f}"),
        ("without a price on long waits", lambda x: f"{x.patient.p99_x:.2f}" if x.patient else "–"),
        _P50,
        *_REST,
        ("goodput ÷ floor's of the first line", lambda x: f"{x.line.goodput / x.first.goodput:.3f}"),
    ),
)
SLICES = Sort(
    (DEFAULT, BALANCED),
    (
        *_FLEET,
        ("prompts", lambda x: _prompts(x.line)),
        *_P99,
        _P50,
        ("× floor p90", lambda x: f"{x.line.p90_s / x.floor.p90_s:.2f}"),
        ("of pooled hit rate", lambda x: f"{x.line.of_pooled:.3f}"),
        *_REST,
        ("goodput ÷ floor's", lambda x: f"{x.line.goodput_x:.3f}"),
    ),
)


def beside(own: Sequence[Row], other: Sequence[Row]) -> str:
    """Markdown: of each fleet of `own` the default's line of `other`, the same fleets and seeds, and then
    each of `own`."""
    seeds = {number(row, "seed") for row in own}
    sort = SLICES if any(row.get("slice_after_s") for row in own) else ENGINES
    usual = _entries([row for row in other if number(row, "seed") in seeds], (DEFAULT,))
    body = []
    for fleet, found in _entries(own, sort.policies).items():
        first = usual[fleet][0].floor
        for entry in (*usual[fleet], *found):
            body.append([form(replace(entry, first=first)) for _heading, form in sort.columns])
    return markdown([heading for heading, _form in sort.columns], body)


def _entries(rows: Sequence[Row], policies: Sequence[str]) -> dict[Fleet, list[Entry]]:
    """Of each fleet, engine by engine. The first line is each one's own."""
    found: dict[Fleet, list[Entry]] = {}
    for point, its_rows in grouped(rows).items():
        told = lines(its_rows)
        floor = only(told, FLOOR)
        patient = next((line for line in told if line.policy == PATIENT), None)
        found.setdefault(_fleet(point), []).extend(
            Entry(_fleet(point), point[4], line, floor, floor, patient)
            for line in told
            if line.policy in policies
        )
    return found


def _fleet(point: Point) -> Fleet:
    return point[2], point[3]


def _prompts(line: Line) -> str:
    if not line.slice_after_s:
        return "in one piece"
    options = line.policy.partition(":")[2]
    return f"in slices after {line.slice_after_s:g} s" + (f", {options}" if options else "")
