"""`make live-study`: routers beside each other on the same live engines.

    python -m benchmarks.live                    every workload, three rounds, each router in turn
    python -m benchmarks.live --only chats --routers ours,smg --rounds 1

Engines are simulated, in real time, and their caches are emptied between two routers. Everything shares the
cores that this process may use; `cores_busy` says how much of them was used. Where that is more than about
0.7, take a larger `--time-scale`: engines and arrivals are slowed alike.

A whole run goes to docs/results/live.json and into docs/live-study.md. One with other options, but for more
rounds, goes nowhere but to `--json`, and into no page but that of `--page`. What was measured when a whole
run is interrupted is in .cache/live-unfinished.json, of others in the file of `--json`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress

from benchmarks.asked import PART, Finite, OutputFile, beginnings, names, output
from benchmarks.ending import in_one_line
from benchmarks.live.engines import Fleet, running_engines
from benchmarks.live.measure import LiveRow, measure
from benchmarks.live.plan import ChatShape, Plan, chats
from benchmarks.live.report import check_page, into_page, markdown, medians, save, show
from benchmarks.live.routers import PINNED, Entry, lineup, our_name
from benchmarks.live.traces import AGENTIC, MOONCAKE, replayed
from benchmarks.live.words import load_words
from gateway.routing.registry import DEFAULT_POLICY, POLICIES

RESULTS, PAGE, ROUNDS = Path("docs/results/live.json"), Path("docs/live-study.md"), 3
UNFINISHED = Path(".cache/live-unfinished.json")
"""What a run for RESULTS has measured so far."""
PEERS = ("sglang-router", "smg", "vllm-router")
CHATS = {"chats": ChatShape(), "chats-in-turn": ChatShape(name="chats-in-turn", in_turn=True)}
TIME_SCALES = {**dict.fromkeys(CHATS, 2.0), "mooncake": 0.25, "agentic": 0.25}


def among(known: Collection[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def check(_context: click.Context, _param: click.Parameter, text: str) -> list[str]:
        try:
            return names(text, known) if text else []
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return check


def whole(context: click.Context) -> bool:
    """What the page tells of: nothing is asked for but more rounds, and where it goes."""
    usual = {"rounds", "given", "page"}
    params = context.params
    changed = {name for name in params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    return changed <= usual and params["rounds"] >= ROUNDS


@click.command(context_settings={"show_default": True})
@click.option(
    "--only",
    default=",".join(TIME_SCALES),
    callback=among(TIME_SCALES),
    help="Workloads, comma-separated.",
)
@click.option("--routers", default="", help="Names to keep, by how they begin.  [default: all]")
@click.option(
    "--policies", default=f"{DEFAULT_POLICY},round_robin", callback=among(POLICIES), help="Of ours."
)
@click.option(
    "--peers",
    default=",".join(PEERS),
    callback=among((*PEERS, "nginx")),
    help="Where installed; nginx is one more.",
)
@click.option("--engines", type=click.IntRange(min=1), default=4)
@click.option("--rounds", type=click.IntRange(min=1), default=ROUNDS)
@click.option(
    "--time-scale", type=Finite(min=0, min_open=True), default=1.0, help="On top of each workload's own."
)
@click.option("--requests", type=click.IntRange(min=1), default=None, help="Of each workload, at most.")
@click.option("--seed", type=int, default=0)
@click.option("--json", "given", type=OutputFile(), help=f"[default: {RESULTS}, of a whole run]")
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Put the tables into it.  [default: {PAGE}, of a whole run]",
)
@click.pass_context
@in_one_line()
def main(
    context: click.Context,
    only: list[str],
    routers: str,
    policies: list[str],
    peers: list[str],
    engines: int,
    rounds: int,
    time_scale: float,
    requests: int | None,
    seed: int,
    given: Path | None,
    page: Path | None,
) -> None:
    """Hit rate, balance, TTFT and goodput of routers in front of the same live engines."""
    kept = output(given, RESULTS, whole=whole(context), page=page is not None)
    kept_names = tuple(name.strip() for name in routers.split(",") if name.strip())
    try:
        beginnings(kept_names, [PINNED, *map(our_name, policies), *peers])
        if kept.pages:
            check_page(page or PAGE)
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    console = Console(width=170)
    rows: list[LiveRow] = []
    abouts: dict[str, str] = {}
    # what the documents tell of is replaced in the end alone
    so_far = UNFINISHED if given is None else given
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        entries = lineup(policies, scratch, peers)
        missing = [peer for peer in peers if all(peer != entry.name for entry in entries)]
        entries = [e for e in entries if not kept_names or e.name.startswith(kept_names)]
        if not entries or not only:
            raise click.UsageError(f"nothing to measure; not installed: {', '.join(missing) or 'none'}")
        console.print("measured:", "; ".join(entry.name for entry in entries))
        console.print("not installed, so not measured:", ", ".join(missing) or "none")
        if kept.result is None:
            console.print(PART)
        for name in only:
            plan = plan_named(name, seed, requests)
            scale = TIME_SCALES[name] * time_scale
            plan = plan.faster(scale)
            abouts[name] = f"{plan.about}; {plan.profile}, {plan.blocks} blocks, time × {scale:g}"
            console.print(f"{name}: {abouts[name]}")
            settings = {"engines": engines, "seed": seed, "workloads": abouts}
            try:
                with running_engines(plan, engines, scale, scratch) as fleet:
                    for number in range(rounds):
                        for entry in entries:
                            rows += _one(entry, plan, fleet, number, scratch, console)
                            # after each, so that a run that is cut short leaves what it found
                            if kept.result is not None:
                                save(so_far, rows, settings)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(_left(rows, None if kept.result is None else so_far)) from None
    middle = medians([asdict(row) for row in rows])
    show(middle, console)
    if kept.pages:
        into_page(page or PAGE, markdown(middle))
    if kept.result is not None:
        save(kept.result, rows, settings)
        console.print(f"written to {kept.result}")
        if so_far == UNFINISHED:
            UNFINISHED.unlink()


def _left(rows: Sequence[LiveRow], path: Path | None) -> str:
    """What a run leaves that is cut short."""
    if path is None or not rows:
        return "nothing was written"
    return f"rows until now, in {path}: {len(rows)}"


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
