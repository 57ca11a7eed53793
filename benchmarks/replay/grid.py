"""What the routing study runs: experiments, each a set of points, each point one fleet at one rate on one
seed with several policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

from benchmarks.replay.cases import FLOOR, HINDSIGHT, Case, Source, policies_named
from benchmarks.replay.traffic import AS_IT_IS, Beginning, Bursts, Traffic

TRACES = Path(__file__).parent.parent / "traces"
DEFAULT = "estimated_ttft"
FAMILY = (DEFAULT, "product")
"""Policies that estimate the time to first token from the same figures."""
EVERYONE = tuple(policies_named("all"))

CONVERSATION = Source(str(TRACES / "mooncake_conversation_trace.jsonl.gz"), "mooncake")
AGENTIC = Source(str(TRACES / "agentic_sessions.jsonl.gz"), "agentic")

ABLATION = (
    FLOOR,
    DEFAULT,
    *(f"{DEFAULT}:work_weight={w}" for w in (1, 1.5, 3, 4)),
    *(f"{DEFAULT}:affinity_weight={a}" for a in (0, 3, 12)),
    *(f"{DEFAULT}:affinity_tokens={t}" for t in (4000, 64000)),
    *(f"{DEFAULT}:long_wait_weight={w}" for w in (0, 2, 8)),
    *(f"{DEFAULT}:memory_weight={m}" for m in (0, 2, 4)),
    *(f"{DEFAULT}:balance_weight={b}" for b in (0, 0.25, 1)),
    *(f"{DEFAULT}:decode_weight={d}" for d in (0, 0.2)),
    *(f"{DEFAULT}:request_tokens={g}" for g in (0, 256)),
)
"""One knob at a time around the default."""
IDLE = tuple(
    policy
    for policy in ABLATION
    if "_" not in (knob := policy.removeprefix(DEFAULT)) or "affinity" in knob or "long_wait" in knob
)
"""The knobs that matter where the fleet has slack."""
FRONTIER = (
    FLOOR,
    *(f"{DEFAULT}:work_weight={w},balance_weight={b}" for w, b in product((1, 2, 4, 8), (0, 0.5, 2))),
    *(name for name in EVERYONE if name not in (FLOOR, DEFAULT)),
)
"""Hit rate against balance: what more of the one costs of the other."""

ENGINES = "h100-8b"
THRESHOLD = ",long_prefill_token_threshold="
"""With it behind their name, engines let short prompts pass long ones."""
PASSING = f"{ENGINES}{THRESHOLD}1024"
PATIENT = f"{DEFAULT}:long_wait_weight=0"
"""The default as it would be if nobody had to wait for a whole long prompt."""
BEST = ("product", "additive", "session_affinity", "tree_threshold", "prefix_gate", "explore")
"""Those baselines that are within 2 % of the best one at any point of the usual engines, be it in p50, in p99
or, at a knee, in goodput."""
STRONG = (FLOOR, DEFAULT, *BEST, PATIENT)
BALANCED = f"{DEFAULT}:balance_weight=1"
"""The default with twice its weight on balance."""
SLICED_AFTER_S = 5.0
"""The goodput's: who takes longer by himself is late for it anyway."""


@dataclass(frozen=True, slots=True)
class Experiment:
    source: Source
    """Its limit is that of each seed. Sessions are put in another order by each seed; of conversations, whose
    order is given, each seed takes the next stretch."""
    workers: int
    blocks: Sequence[int]
    """A worker; each is a fleet of its own."""
    rates: Sequence[float]
    policies: Sequence[str] = EVERYONE
    seeds: Sequence[int] = (0,)
    knee: float | None = None
    """The rate above which most policies no longer keep up; None where targets are not judged."""
    profiles: Sequence[str] = (ENGINES,)
    """Of all workers; each is a fleet of its own."""
    beside: str = ""
    """The experiment whose fleets have other engines, or prompts in one piece, and are the same otherwise.
    Baselines that are not computed here are that one's, where the engines are the same."""
    replicas: Sequence[tuple[int, bool]] = ((1, True),)
    """How many, and whether they share what they know."""
    limits: Sequence[float] = (0.0,)
    """Seconds to the first token beyond which a request is refused; 0: none is."""
    slice_after_s: float = 0.0
    """Prompts that take longer by themselves go to their worker in slices; 0: none."""

    @property
    def changed(self) -> bool:
        """Whether its traffic is another than the trace's."""
        return self.source.traffic != AS_IT_IS

    def points(self) -> list[tuple[Source, list[Case]]]:
        return [
            (self._seeded(seed), self._cases(blocks, rate, seed, profile))
            for seed, blocks, rate, profile in product(self.seeds, self.blocks, self.rates, self.profiles)
        ]

    def _seeded(self, seed: int) -> Source:
        if self.source.kind == "agentic":
            return replace(self.source, seed=seed)
        return replace(self.source, skip=seed * (self.source.limit or 0))

    def _cases(self, blocks: int, rate: float, seed: int, profile: str) -> list[Case]:
        return [
            Case(
                policy,
                self.workers,
                blocks,
                rate,
                profile,
                replicas,
                shared,
                seed,
                max_ttft_s=most,
                slice_after_s=self.slice_after_s,
            )
            for (replicas, shared), most, policy in product(self.replicas, self.limits, self.policies)
            # the floor has no gateway
            if policy != FLOOR or (replicas, shared, most) == (*self.replicas[0], self.limits[0])
        ]


def full() -> Mapping[str, Experiment]:
    """Blocks are of 512 tokens in the conversations, of 256 in the sessions. Two hours of a core."""
    talk, code = replace(CONVERSATION, limit=2500), replace(AGENTIC, limit=1500, copies=2)
    many_talks, many_sessions = replace(talk, limit=6000), replace(code, limit=4000, copies=8)
    return MappingProxyType(
        {
            "conversation-8": Experiment(talk, 8, (600, 1700, 5500), (3, 6, 8), seeds=(0, 1, 2), knee=8),
            "agentic-8": Experiment(code, 8, (850, 1700, 3400), (2, 4, 5), seeds=(0, 1, 2), knee=5),
            "conversation-32": Experiment(many_talks, 32, (600, 1700, 3100), (12, 32), knee=32),
            "agentic-32": Experiment(many_sessions, 32, (1700,), (8, 20), knee=20),
            "memory-conversation-32": Experiment(many_talks, 32, (312,), (12, 28, 32), seeds=(0, 1), knee=28),
            "memory-agentic-32": Experiment(many_sessions, 32, (850,), (8, 20), seeds=(0, 1, 2), knee=20),
            "foresight": Experiment(code, 8, (850, 1700), (2, 5), (FLOOR, DEFAULT, HINDSIGHT), (0, 1, 2)),
            "ablation-conversation": Experiment(talk, 8, (1700,), (8,), ABLATION, (0, 3)),
            "ablation-idle": Experiment(talk, 8, (1700,), (3,), IDLE, (0, 1, 2)),
            "ablation-agentic": Experiment(code, 8, (1700,), (5,), ABLATION, (0, 1, 2)),
            "frontier-conversation": Experiment(talk, 8, (1700,), (4,), FRONTIER, (0,)),
            "frontier-agentic": Experiment(code, 8, (1700,), (4,), FRONTIER, (0,)),
            "admission": Experiment(
                talk, 8, (1700,), (8, 12), (FLOOR, DEFAULT), (0, 1, 2), limits=(0.0, 5.0)
            ),
            "replicas-conversation": _replicas(talk, 6.0),
            "replicas-agentic": _replicas(code, 4.0),
            "mixed": Experiment(talk, 8, (1700,), (5,), profiles=("h100-8b*4+a100-8b*4",)),
            **_other_traffic(talk, code),
            **_passing(talk, code),
            **_sliced(talk, code),
        }
    )


def quick() -> Mapping[str, Experiment]:
    """A few minutes on two cores: is everything in order, and does it look as it should?"""
    talk, code = replace(CONVERSATION, limit=1000), replace(AGENTIC, limit=500)
    some = (FLOOR, DEFAULT, "product", "explore", "least_requests")
    return MappingProxyType(
        {
            "conversation-8": Experiment(talk, 8, (1700,), (4, 8), some, knee=8),
            "agentic-4": Experiment(code, 4, (1700,), (3,), some, (0, 1), knee=3),
            "replicas-conversation": _replicas(talk, 6.0),
        }
    )


def _other_traffic(talk: Source, code: Source) -> dict[str, Experiment]:
    """What traces as they are have little of. Sessions need no documents: theirs are as long."""
    bursts, hot = Traffic(bursts=Bursts(250, 4)), Traffic(hot=Beginning(0.5, 8192))

    def of(source: Source, traffic: Traffic, rate: float) -> Experiment:
        knee = 8 if source is talk else 5
        return Experiment(replace(source, traffic=traffic), 8, (1700,), (rate,), seeds=(0, 1, 2), knee=knee)

    return {
        "bursts-conversation": of(talk, bursts, 3),
        "bursts-agentic": of(code, bursts, 4),
        "hot-conversation": of(talk, hot, 6),
        "hot-agentic": of(code, hot, 4),
        "cold-conversation": of(talk, Traffic(cold=0.5), 6),
        "cold-agentic": of(code, Traffic(cold=0.1), 2),
        "documents-conversation": of(talk, Traffic(documents=Beginning(0.02, 65_536)), 6),
    }


def _passing(talk: Source, code: Source) -> dict[str, Experiment]:
    """Engines that let short prompts pass, beside those that do not."""
    few, seeds, own = (FLOOR, DEFAULT, PATIENT), (0, 1, 2), (PASSING,)
    more = replace(code, limit=4000, copies=8)
    thresholds = tuple(f"{ENGINES}{THRESHOLD}{tokens}" for tokens in (512, 1024, 2048, 4096))
    return {
        "passing-agentic-8": Experiment(
            code, 8, (1700, 3400), (2, 4, 5), STRONG, seeds, 5, own, beside="agentic-8"
        ),
        "passing-agentic-32": Experiment(
            more, 32, (1700,), (8, 20), (*EVERYONE, PATIENT), (0,), 20, own, beside="agentic-32"
        ),
        "passing-conversation-8": Experiment(
            talk, 8, (1700,), (3, 8), STRONG, seeds, 8, own, beside="conversation-8"
        ),
        "passing-memory": Experiment(code, 8, (850,), (2, 5), few, seeds, profiles=own, beside="agentic-8"),
        "passing-thresholds": Experiment(
            code, 8, (1700, 3400), (5,), few, seeds, profiles=thresholds, beside="agentic-8"
        ),
    }


def _sliced(talk: Source, code: Source) -> dict[str, Experiment]:
    """Prompts in slices, beside prompts in one piece."""

    def sliced(
        beside: str, source: Source, workers: int, blocks: Sequence[int], rates: Sequence[float],
        seeds: Sequence[int] = (0, 1, 2), knee: float | None = None,
    ) -> Experiment:  # fmt: skip
        own = (FLOOR, DEFAULT, BALANCED)
        return Experiment(
            source, workers, blocks, rates, own, seeds, knee, beside=beside, slice_after_s=SLICED_AFTER_S
        )

    more = replace(code, limit=4000, copies=8)
    return {
        "sliced-agentic-8": sliced("agentic-8", code, 8, (1700, 3400), (2, 4, 5), knee=5),
        "sliced-agentic-32": sliced("agentic-32", more, 32, (1700,), (8, 20), (0,), knee=20),
        "sliced-conversation-8": sliced("conversation-8", talk, 8, (600, 1700), (3, 8), knee=8),
        "sliced-memory": sliced("agentic-8", code, 8, (850,), (2, 5)),
    }


def _replicas(source: Source, rate: float) -> Experiment:
    counts = ((1, True), (3, True), (3, False))
    return Experiment(source, 8, (1700,), (rate,), (FLOOR, DEFAULT), (0, 1, 2), replicas=counts)
