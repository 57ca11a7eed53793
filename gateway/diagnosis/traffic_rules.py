"""Illnesses of the traffic itself, and of how it is spread."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from gateway.diagnosis.dialects import VLLM
from gateway.diagnosis.divergence import Divergence
from gateway.diagnosis.engine_meters import Meters, dialect_of
from gateway.diagnosis.facts import Facts, Replica, TrafficFacts
from gateway.diagnosis.finding import Evidence, Finding, Severity, percent
from gateway.diagnosis.turns import TurnRow

_ENOUGH_REPLIES = 8
_SLOWER = 2.0
_SLOWER_S = 0.05
_LATE_TURN = 3
_LOST_SHARE = 0.25
_ENOUGH_PROMPTS = 8
_ENOUGH_BLOCKS = 256
_MISSED = 0.1
"""Ten points of hit rate."""
_HOT_FACTOR = 3.0
_HOT_REQUESTS = 3.0
_WEIGHS = "estimated_ttft"
"""The policy that weighs what waits against what is held."""


def context_grows(facts: Facts) -> Iterator[Finding]:
    """Replies slow down turn by turn."""
    for _, model, traffic in _models(facts):
        early = [row for row in traffic.turns if row.first_turn < _LATE_TURN]
        late = [row for row in traffic.turns if row.first_turn >= _LATE_TURN]
        if min(_replies(early), _replies(late)) < _ENOUGH_REPLIES:
            continue
        first = max(early, key=lambda row: row.replies)
        last = max(late, key=lambda row: (row.replies >= _ENOUGH_REPLIES, row.first_turn))
        name, before, after = _latency(first, last)
        slower = after >= _SLOWER * before and after - before >= _SLOWER_S
        if not slower or last.prompt_tokens < 1.5 * first.prompt_tokens:
            continue
        computed = last.uncached_tokens / max(1.0, last.prompt_tokens)
        yield Finding(
            "context-grows",
            Severity.WARNING,
            model,
            "replies slow down turn by turn",
            (
                Evidence(f"{name}, turn {first.first_turn}", before, "s"),
                Evidence(f"{name}, turn {last.first_turn} and later", after, "s"),
                Evidence(f"prompt tokens, turn {first.first_turn}", first.prompt_tokens),
                Evidence(f"prompt tokens, turn {last.first_turn} and later", last.prompt_tokens),
                Evidence("of these computed again", percent(computed)),
            ),
            "every turn sends the whole conversation again; "
            + (
                "its beginning has left the cache by the next turn, so it is computed again"
                if computed > 0.5
                else "it is cached, and each new token still attends to all of it"
            ),
            (
                "trim or summarise the history: the last turns and a summary of the rest",
                *(
                    ("keep it cached between turns: more K/V memory, fp8 K/V, offloading to CPU memory",)
                    if computed > 0.5
                    else ()
                ),
                "drop tool output and retrieved documents from the history once they are used",
            ),
            0.85,
        )


def prefix_broken(facts: Facts) -> Iterator[Finding]:
    for _, model, traffic in _models(facts):
        found = traffic.divergence
        if found.prompts < _ENOUGH_PROMPTS or found.lost_share < _LOST_SHARE or not found.kinds:
            continue
        yield Finding(
            "prefix-broken",
            Severity.WARNING,
            model,
            "prompts that say the same share no cached prefix",
            divergence_evidence(found),
            divergence_cause(found),
            (
                "move what changes (date, ids, user data) behind what stays: last in the system prompt, or "
                "into the user's message",
                "round times to the day; leave request ids out of prompts",
                "list tools and documents in one fixed order, with keys sorted",
            ),
            0.9 if found.kinds[0].diverges_at_block <= 1 else 0.75,
        )


def divergence_evidence(found: Divergence) -> tuple[Evidence, ...]:
    worst = found.kinds[0]
    return (
        Evidence("prompts compared", found.prompts),
        Evidence("of the worst kind", worst.prompts),
        Evidence("its prompts diverge at block", worst.diverges_at_block),
        Evidence("tokens equal up to there", worst.equal_prefix_tokens),
        Evidence("tokens equal anywhere", worst.equal_text_tokens),
        Evidence("tokens that change in between", worst.changed_tokens),
        Evidence("prompt tokens lost to it, of all compared", percent(found.lost_share)),
    )


def divergence_cause(found: Divergence) -> str:
    worst = found.kinds[0]
    if worst.shuffled:
        return "the same parts come in another order each time: tools, documents or JSON keys are not sorted"
    where = (
        "in the first block: a first line with a time, an id or a name"
        if worst.diverges_at_block == 0
        else f"in block {worst.diverges_at_block}"
    )
    return f"they differ {where}, and all behind it is void for a prefix cache, however equal it is"


def working_set(facts: Facts) -> Iterator[Finding]:
    for _, model, traffic in _models(facts):
        reuse, capacity = traffic.reuse, traffic.capacity_blocks
        if not capacity or reuse.blocks < _ENOUGH_BLOCKS or reuse.distinct_blocks <= capacity:
            continue
        missed = reuse.ceiling - traffic.hit_rate_now
        if missed < _MISSED:
            continue
        near = next((size for size, rate in reuse.curve if rate >= reuse.ceiling - 0.02), reuse.curve[-1][0])
        curve = ", ".join(f"{size:,}: {percent(rate)}" for size, rate in reuse.curve if size >= capacity / 4)
        yield Finding(
            "working-set",
            Severity.WARNING,
            model,
            "the working set is larger than the cache: prompts come back after they were evicted",
            (
                Evidence("blocks the fleet holds", capacity),
                Evidence("distinct blocks asked for", reuse.distinct_blocks),
                Evidence("hit rate that this cache can give", percent(traffic.hit_rate_now)),
                Evidence("with a cache that never forgets", percent(reuse.ceiling)),
                Evidence("hit rate by blocks", curve),
            ),
            "what is asked for again is asked for too late: more other prompts came in between than fit",
            (
                f"grow the cache to about {near:,} blocks of {traffic.block_size} tokens in all: "
                f"more workers, {_memory_flags(facts, model)}, or fp8 K/V (twice the blocks)",
                "offload K/V to CPU memory",
                "shorten what is kept per conversation",
            ),
            0.85,
        )


def affinity_lost(facts: Facts) -> Iterator[Finding]:
    """The fleet holds the prefix, and the chosen worker does not."""
    for replica in facts.replicas:
        series = replica.series
        for model, prompt in sorted(series.increase_by("gateway_prompt_tokens_total", "model").items()):
            reusable = series.increase("gateway_reusable_tokens_total", model=model)
            matched = series.increase("gateway_matched_tokens_total", model=model)
            requests = series.increase("gateway_requests_total", model=model, outcome="ok")
            if requests < _ENOUGH_REPLIES or reusable - matched < _MISSED * prompt:
                continue
            policy = replica.policies.get(model) or replica.policies.get("*", "unknown")
            waiting = series.mean("gateway_waiting_tokens", model=model)
            blind = policy in ("round_robin", "least_requests", "power_of_two", "session_affinity")
            yield Finding(
                "affinity-lost",
                Severity.WARNING,
                model,
                "a worker holds the prefix, and requests go to others",
                (
                    Evidence("prompt tokens", prompt),
                    Evidence("reusable somewhere in the fleet", percent(reusable / prompt)),
                    Evidence("held by the chosen worker", percent(matched / prompt)),
                    Evidence("policy", policy),
                    Evidence("prompt tokens waiting, mean", waiting),
                    Evidence("replica", replica.name),
                ),
                f"policy {policy} does not look at prefixes"
                if blind
                else "the holders are busy, full or refused, so their prompts are computed again elsewhere",
                (
                    "choose a policy that weighs prefix against load: PUT /admin/policy "
                    '{"policy": "estimated_ttft"}',
                )
                if blind
                else (
                    "add workers, or raise max_requests of the holders",
                    "see why with `prefix-gateway explain`: it names each worker's load and verdict",
                ),
                0.95 if blind else 0.75,
            )


def hot_spot(facts: Facts) -> Iterator[Finding]:
    """One worker has far more than its share while others idle."""
    pools: dict[str, dict[str, list[float]]] = {}
    for engine in facts.engines:
        meters = Meters(engine.series)
        load = [a + b for a, b in zip(meters.running, meters.waiting, strict=False)]
        if load:
            pools.setdefault(engine.model, {})[engine.url] = load
    for model, pool in sorted(pools.items()):
        means = {url: sum(load) / len(load) for url, load in pool.items()}
        hot = max(means, key=lambda url: means[url])
        others = [mean for url, mean in means.items() if url != hot]
        if not others or means[hot] < _HOT_REQUESTS or means[hot] < _HOT_FACTOR * max(1.0, median(others)):
            continue
        # a burst that one look catches is no hot spot
        longer = sum(load >= means[hot] / 2 for load in pool[hot]) / len(pool[hot])
        if longer < 0.6:
            continue
        spread = ", ".join(f"{url}: {mean:.1f}" for url, mean in sorted(means.items()))
        policies = {p for r in facts.replicas for p in (r.policies.get(model), r.policies.get("*")) if p}
        yield Finding(
            "hot-spot",
            Severity.WARNING,
            hot,
            "this worker has several times the load of the others",
            (
                Evidence("requests there, mean", means[hot]),
                Evidence("by worker", spread),
                Evidence("share of the window", percent(longer)),
                Evidence("policy", ", ".join(sorted(policies)) or "unknown"),
            ),
            f"traffic of model {model or 'unknown'} sticks to it: "
            + (
                "what runs is held there alone, and is expected sooner there than where it would be computed "
                "anew (a worker that came back empty fills with new conversations)"
                if policies == {_WEIGHS}
                else "one hot prefix or session under a policy that does not weigh load"
            )
            + ", or requests bypass the gateway",
            (
                "look at what moving one would cost (`prefix-gateway explain`); a lower affinity_weight "
                "moves them sooner"
                if policies == {_WEIGHS}
                else f"use a policy that weighs load against prefix ({_WEIGHS})",
                "bound it: max_requests=N on the worker",
                "check whether clients talk to the engine directly",
            ),
            0.8,
        )


def _models(facts: Facts) -> Iterator[tuple[Replica, str, TrafficFacts]]:
    """Each model once: from the replica that saw most of it."""
    best: dict[str, tuple[Replica, TrafficFacts]] = {}
    for replica in facts.replicas:
        for model, traffic in replica.traffic.items():
            if model not in best or traffic.reuse.blocks > best[model][1].reuse.blocks:
                best[model] = (replica, traffic)
    for model, (replica, traffic) in sorted(best.items()):
        yield replica, model, traffic


def _memory_flags(facts: Facts, model: str) -> str:
    """Of the engines that serve it."""
    flags = {dialect_of(engine.series).memory_flag for engine in facts.engines if engine.model == model}
    return " or ".join(sorted(flags)) or VLLM.memory_flag


def _replies(rows: list[TurnRow]) -> int:
    return sum(row.replies for row in rows)


def _latency(first: TurnRow, last: TurnRow) -> tuple[str, float, float]:
    if first.ttft_s is not None and last.ttft_s is not None:
        return "TTFT", first.ttft_s, last.ttft_s
    return "time of an answer", first.total_s, last.total_s
