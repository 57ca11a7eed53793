"""Rows of several seeds → one line a policy and point, with ratios taken within each seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from benchmarks.replay.cases import REFERENCES, Row
from benchmarks.replay.outcome import beyond
from benchmarks.replay.report import number

Point = tuple[str, int, int, float, str]
"""Trace, workers, blocks a worker, requests a second, profile."""
Kind = tuple[str, int, bool, float, float]
"""Policy, replicas, whether they share, seconds after which requests are refused and prompts sliced."""


@dataclass(frozen=True, slots=True)
class Line:
    """Means over seeds: geometric for times, goodput and ratios of these, so that a ratio of two lines is the
    mean of what it is within each seed; arithmetic for the rest."""

    policy: str
    replicas: int
    shared: bool
    max_ttft_s: float
    slice_after_s: float
    default: bool
    seeds: int
    hit_rate: float
    of_pooled: float
    balance: float
    p50_s: float
    p90_s: float
    p99_s: float
    p50_x: float
    """Times the floor's."""
    p99_x: float
    p99_low: float
    """The seeds' smallest and largest."""
    p99_high: float
    floor_p50_s: float
    bound_p50_s: float
    bound_p99_s: float
    bound_late: int
    """Requests that must be later than the target for p99, all seeds together; and how many may be."""
    late_allowed: int
    refused: float
    """Share of all that asked."""
    goodput: float
    goodput_x: float
    """Times the floor's."""
    bound_goodput: float
    """What no router exceeds."""
    sessions_balance: float
    sessions_balance_sorted: float
    sessions_balance_unknown: float
    tpot_p99_s: float
    promise_error: float


def grouped(rows: Sequence[Row]) -> dict[Point, list[Row]]:
    found: dict[Point, list[Row]] = {}
    for row in rows:
        point = (
            str(row["trace"]),
            int(number(row, "workers")),
            int(number(row, "blocks_per_worker")),
            number(row, "rate"),
            str(row["profile"]),
        )
        found.setdefault(point, []).append(row)
    return found


def alike(rows: Sequence[Row], other: Sequence[Row]) -> list[Row]:
    """Of `other`, those of points and seeds of `rows`."""
    points, seeds = grouped(rows), {number(row, "seed") for row in rows}
    return [
        row
        for point, its_rows in grouped(other).items()
        if point in points
        for row in its_rows
        if number(row, "seed") in seeds
    ]


def lines(rows: Sequence[Row]) -> list[Line]:
    """Of one point, in the order in which the policies appear."""
    by_name: dict[Kind, list[Row]] = {}
    for row in rows:
        # rows of earlier runs may lack these two
        most, after = (number(row, name) if name in row else 0.0 for name in ("max_ttft_s", "slice_after_s"))
        kind = (str(row["policy"]), int(number(row, "replicas")), bool(row["shared"]), most, after)
        by_name.setdefault(kind, []).append(row)
    return [_line(kind, own) for kind, own in by_name.items()]


def only(found: Sequence[Line], policy: str) -> Line:
    return next(line for line in found if line.policy == policy)


def baselines(found: Sequence[Line]) -> list[Line]:
    """The other policies. The default with another weight is none of them."""
    own = {line.policy for line in found if line.default}
    return [
        line for line in found if line.policy not in REFERENCES and line.policy.partition(":")[0] not in own
    ]


def _line(kind: Kind, rows: Sequence[Row]) -> Line:
    policy, replicas, shared, max_ttft_s, slice_after_s = kind
    p99 = _ratios(rows, "ttft_p99_s", "floor_ttft_p99_s")
    return Line(
        policy=policy,
        replicas=replicas,
        shared=shared,
        max_ttft_s=max_ttft_s,
        slice_after_s=slice_after_s,
        default=bool(rows[0]["default"]),
        seeds=len(rows),
        hit_rate=_mean(rows, "hit_rate"),
        of_pooled=fmean(_ratios(rows, "hit_rate", "ceiling_hit_rate")),
        balance=_mean(rows, "balance"),
        p50_s=_geometric([number(row, "ttft_p50_s") for row in rows]),
        p90_s=_geometric([number(row, "ttft_p90_s") for row in rows]),
        p99_s=_geometric([number(row, "ttft_p99_s") for row in rows]),
        p50_x=_geometric(_ratios(rows, "ttft_p50_s", "floor_ttft_p50_s")),
        p99_x=_geometric(p99),
        p99_low=min(p99),
        p99_high=max(p99),
        floor_p50_s=_geometric([number(row, "floor_ttft_p50_s") for row in rows]),
        bound_p50_s=_geometric([number(row, "bound_ttft_p50_s") for row in rows]),
        bound_p99_s=_geometric([number(row, "bound_ttft_p99_s") for row in rows]),
        bound_late=sum(int(number(row, "bound_late")) for row in rows),
        late_allowed=sum(beyond(int(number(row, "requests")), 0.99) for row in rows),
        refused=fmean(_refused(row) for row in rows),
        goodput=_geometric([number(row, "goodput_rps") for row in rows]),
        goodput_x=_geometric(_ratios(rows, "goodput_rps", "floor_goodput_rps")),
        bound_goodput=_geometric([number(row, "bound_goodput_rps") for row in rows]),
        sessions_balance=_mean(rows, "sessions_balance"),
        sessions_balance_sorted=_mean(rows, "sessions_balance_sorted"),
        sessions_balance_unknown=_mean(rows, "sessions_balance_unknown"),
        tpot_p99_s=_geometric([max(1e-9, number(row, "tpot_p99_s")) for row in rows]),
        promise_error=_mean(rows, "promise_error"),
    )


def _ratios(rows: Sequence[Row], name: str, of: str) -> list[float]:
    return [number(row, name) / number(row, of) if number(row, of) else float("nan") for row in rows]


def _refused(row: Row) -> float:
    refused = number(row, "refused") if "refused" in row else 0.0
    return refused / (refused + number(row, "requests"))


def _mean(rows: Sequence[Row], name: str) -> float:
    return fmean(number(row, name) for row in rows)


def _geometric(values: Sequence[float]) -> float:
    """0 where one of them is."""
    return exp(fmean(log(value) for value in values)) if all(values) else 0.0
