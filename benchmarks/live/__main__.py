"""`make live-study`: routers beside each other on the same live engines.

    python -m benchmarks.live                    every workload, three rounds, each router in turn
    python -m benchmarks.live --only chats --routers ours,smg --rounds 1

Engines are simulated, in real time, and their caches are emptied between two routers. Everything shares the
cores that this process may use; `cores_busy` says how much of them was used. Where that is more than about
0.7, take a larger `--time-scale`: engines and arrivals are slowed alike.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.live.engines import Fleet, running_engines
from benchmarks.live.measure import LiveRow, measure
from benchmarks.live.plan import ChatShape, Plan, chats
from benchmarks.live.report import into_page, markdown, medians, save, show
from benchmarks.live.routers import Entry, lineup
from benchmarks.live.traces import AGENTIC, MOONCAKE, replayed
from benchmarks.live.words import load_words
from gateway.routing.registry import DEFAULT_POLICY

PEERS = ("sglang-router", "smg", "vllm-router")
CHATS = {"chats": ChatShape(), "chats-in-turn": ChatShape(name="chats-in-turn", in_turn=True)}
TIME_SCALES = {**dict.fromkeys(CHATS, 2.0), "mooncake": 0.25, "agentic": 0.25}


@click.command(context_settings={"show_default": True})
@click.option("--only", default=",".join(TIME_SCALES), help="Workloads, comma-separated.")
@click.option("--routers", default="", help="Names to keep, by how they begin.  [default: all]")
@click.option("--policies", default=f"{DEFAULT_POLICY},round_robin", help="Of ours.")
@click.option("--peers", default=",".join(PEERS), help="Where installed; nginx is one more.")
@click.option("--engines", type=click.IntRange(min=1), default=4)
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--time-scale", type=float, default=1.0, help="On top of each workload's own.")
@click.option("--requests", type=click.IntRange(min=1), default=None, help="Of each workload, at most.")
@click.option("--seed", type=int, default=0)
@click.option(
    "--json", "out", type=click.Path(dir_okay=False, path_type=Path), default="docs/results/live.json"
)
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="Put the tables into it.")
def main(
    only: str,
    routers: str,
    policies: str,
    peers: str,
    engines: int,
    rounds: int,
    time_scale: float,
    requests: int | None,
    seed: int,
    out: Path,
    page: Path | None,
) -> None:
    """Hit rate, balance, TTFT and goodput of routers in front of the same live engines."""
    # told to end, it ends what it started as well
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console(width=170)
    rows: list[LiveRow] = []
    abouts: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        entries = lineup(policies.split(","), scratch, peers.split(","))
        entries = [e for e in entries if not routers or e.name.startswith(tuple(routers.split(",")))]
        console.print("measured:", "; ".join(entry.name for entry in entries))
        for name in only.split(","):
            plan = plan_named(name, seed, requests)
            scale = TIME_SCALES[name] * time_scale
            plan = plan.faster(scale)
            abouts[name] = f"{plan.about}; {plan.profile}, {plan.blocks} blocks, time × {scale:g}"
            console.print(f"{name}: {abouts[name]}")
            settings = {"engines": engines, "seed": seed, "workloads": abouts}
            with running_engines(plan, engines, scale, scratch) as fleet:
                for number in range(rounds):
                    for entry in entries:
                        rows += _one(entry, plan, fleet, number, scratch, console)
                        # after each, so that a run that is cut short leaves what it found
                        save(out, rows, settings)
    middle = medians([asdict(row) for row in rows])
    show(middle, console)
    if page is not None:
        into_page(page, markdown(middle))
    console.print(f"written to {out}")


def plan_named(name: str, seed: int, requests: int | None) -> Plan:
    """At most `requests` of its turns, in whole conversations. Raises UsageError for an unknown name."""
    words = load_words()
    if name in CHATS:
        shape = CHATS[name]
        if requests is not None:
            shape = replace(shape, conversations=max(1, min(shape.conversations, requests // shape.turns)))
        return chats(shape, words, seed)
    shapes = {"mooncake": MOONCAKE, "agentic": AGENTIC}
    if name not in shapes:
        raise click.UsageError(f"no workload {name!r}; there are {', '.join(TIME_SCALES)}")
    trace = shapes[name]
    return replayed(replace(trace, requests=min(trace.requests, requests or trace.requests)), words, seed)


def _one(
    entry: Entry, plan: Plan, fleet: Fleet, number: int, scratch: Path, console: Console
) -> list[LiveRow]:
    """Nothing where the router could not be measured; the console says why."""
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"{plan.name}, round {number + 1}: {entry.name}", total=len(plan.turns))
        try:
            row = measure(entry, plan, fleet, number, scratch, lambda: bar.advance(task))
        except RuntimeError as error:
            console.print(f"  {entry.name} left out: {error}")
            return []
    console.print(
        f"  round {number + 1} {entry.name}: hit {row.hit_rate:.3f}, busiest/mean {row.balance:.3f}, TTFT "
        f"{row.ttft_p50_s * 1e3:.0f} / {row.ttft_p99_s * 1e3:.0f} ms, failed {row.failed}, "
        f"cores {row.cores_busy:.0%} busy"
    )
    return [row]


if __name__ == "__main__":
    main()
