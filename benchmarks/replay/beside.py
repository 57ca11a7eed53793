"""The same fleets with other engines: what that gains, and against which floor."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.replay.aggregate import Line, Point, grouped, lines
from benchmarks.replay.cases import FLOOR, Row
from benchmarks.replay.grid import DEFAULT, PATIENT, THRESHOLD
from benchmarks.replay.report import markdown, number

HEAD = (
    "blocks",
    "rate",
    "threshold",
    "floor p99 s",
    "× floor p99",
    "its seeds",
    "× floor p99 of the first line",
    "without a price on long waits",
    "× floor p50",
    "busiest/mean",
    "TPOT p99 ms",
    "goodput ÷ floor's of the first line",
)
Fleet = tuple[int, float]
"""Blocks a worker, requests a second."""


def beside(own: Sequence[Row], other: Sequence[Row]) -> str:
    """Markdown: of each fleet of `own` the default's line with the engines of `other`, the same fleets and
    seeds, and then with each kind of `own`."""
    seeds = {number(row, "seed") for row in own}
    usual = _lines([row for row in other if number(row, "seed") in seeds])
    body = []
    for fleet, found in _lines(own).items():
        (_profile, first), *_none = usual[fleet]
        for profile, by_policy in (*usual[fleet], *found):
            body.append(_cells(fleet, profile, by_policy, first[FLOOR]))
    return markdown(HEAD, body)


def _lines(rows: Sequence[Row]) -> dict[Fleet, list[tuple[str, dict[str, Line]]]]:
    """Of each fleet, by the engines' profile, the policies that are compared."""
    found: dict[Fleet, list[tuple[str, dict[str, Line]]]] = {}
    for point, its_rows in grouped(rows).items():
        by_policy = {
            line.policy: line for line in lines(its_rows) if line.policy in (FLOOR, DEFAULT, PATIENT)
        }
        found.setdefault(_fleet(point), []).append((point[4], by_policy))
    return found


def _fleet(point: Point) -> Fleet:
    return point[2], point[3]


def _cells(fleet: Fleet, profile: str, by_policy: dict[str, Line], first: Line) -> tuple[str, ...]:
    line, floor, patient = by_policy[DEFAULT], by_policy[FLOOR], by_policy.get(PATIENT)
    return (
        str(fleet[0]),
        f"{fleet[1]:g}",
        profile.partition(THRESHOLD)[2] or "none",
        f"{floor.p99_s:.2f}",
        f"{line.p99_x:.2f}",
        f"{line.p99_low:.2f}…{line.p99_high:.2f}",
        # the same seeds, and means of both are geometric: so this is the mean of what it is within a seed
        f"{line.p99_s / first.p99_s:.2f}",
        f"{patient.p99_x:.2f}" if patient else "–",
        f"{line.p50_x:.2f}",
        f"{line.balance:.2f}",
        f"{1e3 * line.tpot_p99_s:.0f}",
        f"{line.goodput / first.goodput:.3f}",
    )
