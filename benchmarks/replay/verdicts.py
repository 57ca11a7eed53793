"""Is the default as good as it should be? Each target at each point, with the figure that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.replay.aggregate import Line, baselines, only
from benchmarks.replay.bounds import P99_OF_FLOOR
from benchmarks.replay.cases import FLOOR
from benchmarks.replay.grid import DEFAULT, FAMILY

P50_OF_FLOOR = 1.25
P50_BEYOND_FLOOR_S = 0.05
HIT_OF_POOLED = 0.95
BALANCE = 1.1
P99_OF_BEST = 1.02
GOODPUT_OF_BEST = 1.1
_NOISE = 1e-3
"""Times closer than this are equal."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`met` is None where the target does not apply."""

    name: str
    met: bool | None
    figure: float
    who: str = ""
    """The baseline that it was compared with."""


def verdicts(found: Sequence[Line], rate: float, knee: float) -> list[Verdict]:
    """`found` are all policies of one point."""
    own, floor, others = only(found, DEFAULT), only(found, FLOOR), baselines(found)
    best = min(others, key=lambda line: line.p99_x)
    strangers = [line for line in others if line.policy not in FAMILY]
    good = max(strangers, key=lambda line: line.goodput)
    dominating = [line for line in others if _less(line.p50_s, own.p50_s) and _less(line.p99_s, own.p99_s)]
    near = own.p50_x <= P50_OF_FLOOR or own.p50_s - floor.p50_s <= P50_BEYOND_FLOOR_S
    return [
        Verdict("p99", own.p99_x <= P99_OF_FLOOR, own.p99_x),
        Verdict("p50", near, own.p50_x),
        Verdict("hit rate", own.of_pooled >= HIT_OF_POOLED if rate < knee / 2 else None, own.of_pooled),
        Verdict("balance", own.balance <= BALANCE, own.balance),
        Verdict("not dominated", not dominating, len(dominating), ", ".join(d.policy for d in dominating)),
        Verdict("best p99", own.p99_x <= best.p99_x * P99_OF_BEST, own.p99_x / best.p99_x, best.policy),
        Verdict(
            "goodput",
            own.goodput >= GOODPUT_OF_BEST * good.goodput if rate == knee else None,
            own.goodput / good.goodput,
            good.policy,
        ),
    ]


def _less(time: float, than: float) -> bool:
    return time < than * (1 - _NOISE)
