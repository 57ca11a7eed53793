"""Who is later than the target for p99, at one point of the routing study.

    python -m benchmarks.replay.late passing-agentic-8 --blocks 1700 --rate 5
    python -m benchmarks.replay.late agentic-8 --blocks 1700 --rate 2 --policy prefix_gate
    python -m benchmarks.replay.late agentic-8 --blocks 850 --rate 5 --slice-after 5

A line for each request that is later than 1.05 × the floor's p99: what of its prompt was computed, what of
the promise did not come true, its time to the first token and the floor's; then how many there are and may
be, how many of them are late at the floor too, and what the latest of all takes here and there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks.asked import Finite
from benchmarks.ending import in_one_line
from benchmarks.replay.bounds import P99_OF_FLOOR
from benchmarks.replay.cases import FLOOR, check_policy, run_of
from benchmarks.replay.grid import DEFAULT, Experiment, full
from benchmarks.replay.outcome import Outcome, quantile
from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Late:
    seed: int
    number: int
    """Of the request."""
    outcome: Outcome
    floor_s: float
    """Its time to the first token there."""
    is_late_there: bool


def late_of(seed: int, floor: Sequence[Outcome], outcomes: Sequence[Outcome]) -> list[Late]:
    """Those of `outcomes` that are later than the target, in order of arrival. Both are of the same requests,
    by number."""
    most = P99_OF_FLOOR * quantile(sorted(outcome.ttft for outcome in floor), 0.99)
    found = [
        Late(seed, number, outcome, there.ttft, there.ttft > most)
        for number, (outcome, there) in enumerate(zip(outcomes, floor, strict=True))
        if outcome.ttft > most
    ]
    return sorted(found, key=lambda late: late.outcome.arrived)


class Runs(NamedTuple):
    """The same requests twice."""

    seed: int
    floor: list[Outcome]
    outcomes: list[Outcome]


def runs_of(experiment: Experiment, blocks: int, rate: float, policy: str, slice_after: float) -> list[Runs]:
    """Of each seed of one point. Raises ValueError."""
    found = []
    for source, cases in experiment.points():
        floor = next((c for c in cases if c.policy == FLOOR), None)
        if floor is None or (floor.blocks_per_worker, floor.rate) != (blocks, rate):
            continue
        content, case = source.content(), replace(floor, policy=policy, slice_after_s=slice_after)
        found.append(Runs(floor.seed, run_of(content, floor).outcomes, run_of(content, case).outcomes))
    return found


@click.command(context_settings={"show_default": True})
@click.argument("name")
@click.option("--blocks", type=int, required=True, help="A worker; one of the experiment's.")
@click.option("--rate", type=float, required=True, help="Requests a second; one of the experiment's.")
@click.option("--policy", default=DEFAULT, help="With parameters as in NAME:key=value.")
@click.option(
    "--slice-after",
    type=Finite(min=0),
    help="Seconds; prompts that take longer by themselves go in slices; 0: none.  [default: experiment's]",
)
@in_one_line()
def main(name: str, blocks: int, rate: float, policy: str, slice_after: float | None) -> None:
    """Of the experiment NAME, over all its seeds."""
    known = full()
    if name not in known:
        raise click.UsageError(f"no experiment {name}; there are {', '.join(known)}")
    try:
        check_policy(policy)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    experiment = known[name]
    if (blocks, rate) not in {(b, r) for b in experiment.blocks for r in experiment.rates}:
        raise click.UsageError(
            f"{name} has blocks {', '.join(map(str, experiment.blocks))} and rates "
            f"{', '.join(f'{r:g}' for r in experiment.rates)}"
        )
    after = experiment.slice_after_s if slice_after is None else slice_after
    try:
        runs = runs_of(experiment, blocks, rate, policy, after)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    found = [late for run in runs for late in late_of(*run)]
    table = Table("seed", "request", "at s", "worker", "prompt", "computed", "lost", "TTFT s", "floor's s")
    for late in found:
        one = late.outcome
        table.add_row(
            str(late.seed), str(late.number), f"{one.arrived:.1f}", str(one.worker), f"{one.prompt_tokens:,}",
            f"{one.prompt_tokens - one.cached_tokens:,}",
            f"{max(0, one.promised_tokens - one.cached_tokens):,}", f"{one.ttft:.2f}", f"{late.floor_s:.2f}",
        )  # fmt: skip
    requests = sum(len(run.outcomes) for run in runs)
    latest = max(one.ttft for run in runs for one in run.outcomes)
    latest_there = max(one.ttft for run in runs for one in run.floor)
    console = Console(width=120)
    console.print(table)
    console.print(
        f"{len(found)} of {requests} requests are late where {requests // 100} may be; "
        f"{sum(late.is_late_there for late in found)} of them at the floor, too; "
        f"the latest takes {latest:.2f} s, the floor's {latest_there:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
