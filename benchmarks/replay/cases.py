"""One line of a replay's results: what was asked for, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

import msgspec

from benchmarks.ending import write
from benchmarks.replay import formats
from benchmarks.replay.bounds import P99_OF_FLOOR, Bounds, bounds
from benchmarks.replay.ceilings import Ceilings, ceilings
from benchmarks.replay.content import Content
from benchmarks.replay.floor import PooledFleet
from benchmarks.replay.hindsight import best_in_hindsight
from benchmarks.replay.outcome import Summary, summarise
from benchmarks.replay.simulation import Delays, Progress, Run, Setup, Simulation
from benchmarks.replay.trace import coarser, shortened
from benchmarks.replay.traffic import AS_IT_IS, Traffic
from gateway.routing.policy import Policy
from gateway.routing.registry import DEFAULT_POLICY, POLICIES, make_policy
from gateway.routing.slicing import Slicing
from workers.profiles import Profile, profile_named

FLOOR = "floor"
HINDSIGHT = "hindsight"
REFERENCES = (FLOOR, HINDSIGHT)
"""No policies: what they know nobody knows."""
BLOCK_SIZES = {"mooncake": 512, "agentic": 256, "bailian": 16, "csv": 16}
"""Tokens in an engine block where nothing else is said: the trace's own, or for prompts of 100,000 tokens
several of them."""


@dataclass(frozen=True, slots=True)
class Source:
    """Which trace, and what of it."""

    path: str
    kind: str
    block_size: int = 0
    """0 is the format's usual one."""
    skip: int = 0
    limit: int | None = None
    longest: int | None = 131_072
    copies: int = 1
    seed: int = 0
    traffic: Traffic = AS_IT_IS

    def content(self) -> Content:
        """Raises ValueError, also where no request is left; OSError."""
        whole = formats.load(Path(self.path), self.kind, copies=self.copies, seed=self.seed)
        whole = self.traffic.prompts(whole, self.seed)
        trace = shortened(whole, skip=self.skip, limit=self.limit, longest=self.longest)
        if not trace.requests:
            shortest = min(request.input_tokens + request.output_tokens for request in whole.requests)
            raise ValueError(
                f"none of the {len(whole.requests)} requests of {whole.name} is left: the shortest has "
                f"{shortest} tokens in all, {self.longest} are the most (--longest, and a worker's blocks), "
                f"and {self.skip} are skipped"
            )
        trace = self.traffic.times(trace)
        size = self.block_size or BLOCK_SIZES[self.kind]
        if size > trace.unit:
            trace = coarser(trace, size)
        return Content(trace, size)


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `policy` is a name, with parameters as in ``estimated_ttft:work_weight=1``; ``floor`` is the
    pooled fleet, ``hindsight`` a router that knows who will come when."""

    policy: str
    workers: int
    blocks_per_worker: int
    rate: float
    """Requests a second offered on average."""
    profile: str = "h100-8b"
    replicas: int = 1
    shared: bool = True
    seed: int = 0
    delays: Delays = field(default_factory=Delays)
    slo_ttft_s: float = 5.0
    slo_tpot_s: float = 0.1
    max_ttft_s: float = 0.0
    """Requests are refused that nobody is expected to answer within so many seconds; 0: none."""
    slice_after_s: float = 0.0
    """Prompts that take longer by themselves go to their worker in slices; 0: none."""


Row = dict[str, object]


def run_case(content: Content, case: Case, progress: Progress | None = None) -> Row:
    """Raises what `run_of` does."""
    run = run_of(content, case, progress)
    summary = summarise(
        run.outcomes,
        case.workers,
        slo_ttft_s=case.slo_ttft_s,
        slo_tpot_s=case.slo_tpot_s,
        busy_s=run.busy_s,
        preemptions=run.preemptions,
        refused=run.refused,
    )
    return _row(content, case, summary)


def run_of(content: Content, case: Case, progress: Progress | None = None) -> Run:
    """Raises ValueError for a trace, a profile or a cache that cannot be replayed, ConfigError for a policy
    that cannot be made."""
    profiles = profiles_of(case, content.block_size)
    if not content.trace.rate:
        raise ValueError(f"{content.trace.name} has no two requests at different times: nothing to speed up")
    setup = Setup(
        profiles=profiles,
        speed=case.rate / content.trace.rate,
        replicas=case.replicas,
        shared=case.shared,
        delays=case.delays,
        seed=case.seed,
        max_ttft_s=case.max_ttft_s,
        slicing=Slicing(case.slice_after_s),
    )
    if case.policy == FLOOR:
        return PooledFleet(content, setup, progress).run()
    if case.policy == HINDSIGHT:
        return best_in_hindsight(content, setup, progress)
    name, params = policy_and_params(case.policy)

    def new_policy(random: Random) -> Policy:
        return make_policy(name, params, random=random)

    return Simulation(content, setup, new_policy, progress).run()


Fleet = tuple[int, int, str, float, float]
"""Workers, blocks a worker, profile, requests a second, seconds to the first token that count as good."""


def with_ceilings(rows: Sequence[Row], limits: Mapping[Fleet, tuple[Ceilings, Bounds]]) -> list[Row]:
    """Every row with the ceilings and bounds of its fleet, and the floor's times where the floor was run."""
    floors = {_point(row): row for row in rows if row["policy"] == FLOOR}
    finished = []
    for row in rows:
        ceiling, bound = limits[_fleet(row)]
        floor = floors.get(_point(row), {})
        p99 = floor.get("ttft_p99_s")
        finished.append(
            row
            | {
                "ceiling_hit_rate": round(ceiling.pooled_lru, 6),
                "infinite_hit_rate": round(ceiling.infinite, 6),
                "clairvoyant_hit_rate": round(ceiling.clairvoyant, 6),
                "floor_ttft_p50_s": floor.get("ttft_p50_s"),
                "floor_ttft_p99_s": p99,
                "floor_goodput_rps": floor.get("goodput_rps"),
                "bound_ttft_p50_s": round(bound.ttft_p50_s, 6),
                "bound_ttft_p99_s": round(bound.ttft_p99_s, 6),
                "bound_late": bound.later_than(P99_OF_FLOOR * float(str(p99))) if p99 else None,
                "bound_goodput_rps": round(bound.goodput_rps, 6),
                "sessions_balance": round(bound.balance_as_they_come, 6),
                "sessions_balance_sorted": round(bound.balance_sorted, 6),
                "sessions_balance_unknown": round(bound.balance_unknown, 6),
            }
        )
    return finished


def limits_of(content: Content, cases: Sequence[Case]) -> dict[Fleet, tuple[Ceilings, Bounds]]:
    fleets = {
        (case.workers, case.blocks_per_worker, case.profile, case.rate, case.slo_ttft_s): case
        for case in cases
    }
    found = {}
    for fleet, case in sorted(fleets.items(), key=lambda pair: pair[0]):
        timings = {profile.name: profile.timing for profile in profiles_of(case, content.block_size)}
        found[fleet] = (
            ceilings(content, case.workers * case.blocks_per_worker),
            bounds(
                content,
                list(timings.values()),
                case.rate / content.trace.rate,
                case.slo_ttft_s,
                case.workers,
            ),
        )
    return found


def profiles_of(case: Case, block_size: int) -> list[Profile]:
    """``h100-8b`` for all, or ``h100-8b*6+l4-8b*2``. Raises ValueError where the counts do not add up."""
    parts = case.profile.split("+")
    counts: list[tuple[Profile, int]] = []
    for part in parts:
        name, star, count = part.partition("*")
        if not star and len(parts) > 1:
            raise ValueError(f"how many of {name!r}? Say {name}*3")
        if star and not count.isdecimal():
            raise ValueError(f"how many of {name!r}? {count!r} is no whole number")
        counts.append((profile_named(name), int(count) if star else case.workers))
    total = sum(count for _profile, count in counts)
    if total != case.workers:
        raise ValueError(f"{case.profile!r} are {total} engines, {case.workers} are asked for")
    return [
        _sized(profile, case.blocks_per_worker, block_size) for profile, count in counts for _ in range(count)
    ]


def policy_and_params(text: str) -> tuple[str, dict[str, float | str]]:
    """What is no number is left as it is: who makes the policy says what it may be."""
    name, _colon, rest = text.partition(":")
    params: dict[str, float | str] = {}
    for pair in filter(None, rest.split(",")):
        key, _equals, value = pair.partition("=")
        try:
            params[key] = float(value)
        except ValueError:
            params[key] = value
    return name, params


def check_policy(text: str) -> None:
    """Raises ConfigError where no such policy can be made."""
    name, params = policy_and_params(text)
    if name not in REFERENCES:
        make_policy(name, params, random=Random(0))


def policies_named(text: str) -> list[str]:
    """``all`` is the floor and every policy there is; else names split by ``;``, or by commas where none
    has parameters."""
    if text == "all":
        return [FLOOR, *POLICIES]
    if ";" in text or ":" in text:
        return text.split(";")
    return text.split(",")


def save(rows: Sequence[Row], path: Path) -> None:
    write(path, msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


def _sized(profile: Profile, blocks: int, block_size: int) -> Profile:
    longest = min(profile.max_model_len, blocks * block_size)
    return replace(profile, num_blocks=blocks, block_size=block_size, max_model_len=longest)


def _row(content: Content, case: Case, summary: Summary) -> Row:
    figures = {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(summary).items()}
    return {
        "trace": content.trace.name,
        "block_size": content.block_size,
        "policy": case.policy,
        "default": case.policy == DEFAULT_POLICY,
        "workers": case.workers,
        "blocks_per_worker": case.blocks_per_worker,
        "cache_share": round(
            case.workers * case.blocks_per_worker * content.block_size / content.trace.working_set(), 4
        ),
        "rate": case.rate,
        "profile": case.profile,
        "replicas": case.replicas,
        "shared": case.shared,
        "seed": case.seed,
        "slo_ttft_s": case.slo_ttft_s,
        "slo_tpot_s": case.slo_tpot_s,
        "max_ttft_s": case.max_ttft_s,
        "slice_after_s": case.slice_after_s,
        **figures,
    }


def _point(row: Row) -> tuple[object, ...]:
    names = ("trace", "workers", "blocks_per_worker", "rate", "profile", "seed")
    return tuple(row[name] for name in names)


def _fleet(row: Row) -> Fleet:
    workers, blocks = int(str(row["workers"])), int(str(row["blocks_per_worker"]))
    return workers, blocks, str(row["profile"]), float(str(row["rate"])), float(str(row["slo_ttft_s"]))
