"""The routing study: ``python -m benchmarks.replay.study`` runs what docs/routing-study.md is made of.

Every experiment is one trace, some fleets, some rates, some policies; its rows go to a JSON file with a plot
beside it. A file that is there is kept, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

import click
import msgspec
from rich.console import Console

from benchmarks.replay.batch import run_cases
from benchmarks.replay.cases import FLOOR, Case, Source, policies_named, save
from benchmarks.replay.report import draw, show

TRACES = Path(__file__).parent.parent / "traces"
RESULTS = Path(__file__).parent.parent / "results" / "replay"

MOONCAKE = Source(str(TRACES / "mooncake_conversation_trace.jsonl.gz"), "mooncake")
AGENTIC = Source(str(TRACES / "agentic_sessions.jsonl.gz"), "agentic")
DEFAULT = "estimated_ttft"
WEIGHTS = tuple(f"{DEFAULT}:work_weight={w},memory_weight={m}" for w, m in product((1, 1.5, 2, 3), (0, 2, 4)))
EVERYONE = tuple(policies_named("all"))


@dataclass(frozen=True, slots=True)
class Experiment:
    source: Source
    workers: int
    blocks: Sequence[int]
    """A worker; each is a fleet of its own."""
    rates: Sequence[float]
    policies: Sequence[str] = EVERYONE
    profile: str = "h100-8b"
    replicas: Sequence[tuple[int, bool]] = ((1, True),)
    """How many, and whether they share what they know."""

    def cases(self) -> list[Case]:
        cases = []
        for blocks, rate, (replicas, shared), policy in product(
            self.blocks, self.rates, self.replicas, self.policies
        ):
            first = (replicas, shared) == self.replicas[0]
            if policy != FLOOR or first:  # the floor has no gateway
                cases.append(Case(policy, self.workers, blocks, rate, self.profile, replicas, shared))
        return cases


def experiments(limit: int | None) -> Mapping[str, Experiment]:
    """`limit` shortens the Mooncake trace. Blocks are of 512 and 256 tokens; 850 and 1,700 are what an H100
    holds beside an 8B model in bf16."""
    mooncake = replace(MOONCAKE, limit=limit)
    pair = (FLOOR, DEFAULT)
    return MappingProxyType(
        {
            "mooncake-8": Experiment(mooncake, 8, (850, 1700, 6850), (4, 8, 9)),
            "mooncake-32": Experiment(mooncake, 32, (850, 1700), (16, 32, 36)),
            "agentic-4": Experiment(AGENTIC, 4, (850, 1700, 5000), (1, 2, 3)),
            "agentic-8": Experiment(replace(AGENTIC, copies=2), 8, (850, 1700, 5000), (3, 6)),
            "agentic-32": Experiment(replace(AGENTIC, copies=8), 32, (1700,), (12, 24)),
            "weights-mooncake": Experiment(mooncake, 8, (700, 1700), (8, 9), (FLOOR, *WEIGHTS)),
            "weights-agentic": Experiment(AGENTIC, 4, (1000, 1700), (2, 3), (FLOOR, *WEIGHTS)),
            "replicas": Experiment(
                mooncake, 8, (1700,), (8,), pair, replicas=((1, True), (3, True), (3, False))
            ),
            "mixed": Experiment(mooncake, 8, (1700,), (4,), EVERYONE, profile="h100-8b*4+a100-8b*4"),
            "fine-blocks": Experiment(
                replace(MOONCAKE, limit=1500, block_size=16),
                8,
                (54_400,),
                (8,),
                (*pair, "product", "explore"),
            ),
        }
    )


def machine() -> dict[str, str]:
    """What the numbers were computed on. Virtual time does not depend on it."""
    return {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1)
@click.option("--jobs", type=click.IntRange(min=1), default=2, help="Processes.")
@click.option("--limit", type=int, default=None, help="Only so many requests of the Mooncake trace.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=RESULTS)
@click.option("--again", is_flag=True, help="Run also what has its results already.")
def main(names: tuple[str, ...], jobs: int, limit: int | None, out: Path, again: bool) -> None:
    """Run the experiments NAMES, all where none is named."""
    known = experiments(limit)
    if unknown := set(names) - set(known):
        raise click.ClickException(f"no experiment {', '.join(unknown)}; there are {', '.join(known)}")
    console = Console(width=150)
    for name in names or known:
        path = out / f"{name}.json"
        if path.exists() and not again:
            console.print(f"{path} is there")
            continue
        rows = run_cases(known[name].source, known[name].cases(), jobs)
        save(rows, path)
        draw(rows, path.with_suffix(".png"))
        show(rows, console)
    out.mkdir(parents=True, exist_ok=True)
    (out / "machine.json").write_bytes(msgspec.json.format(msgspec.json.encode(machine())) + b"\n")


if __name__ == "__main__":
    main()
