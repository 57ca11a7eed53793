"""All rules over the facts: worst finding first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gateway.diagnosis import engine_rules, knowledge_rules, traffic_rules
from gateway.diagnosis.facts import Facts
from gateway.diagnosis.finding import Finding

Rule = Callable[[Facts], Iterator[Finding]]

RULES: Sequence[Rule] = (
    knowledge_rules.workers_down,
    engine_rules.kv_contention,
    engine_rules.batch_limit,
    engine_rules.bandwidth_bound,
    engine_rules.prefix_caching_off,
    engine_rules.engine_silent,
    traffic_rules.context_grows,
    traffic_rules.prefix_broken,
    traffic_rules.working_set,
    traffic_rules.affinity_lost,
    traffic_rules.hot_spot,
    knowledge_rules.events_off,
    knowledge_rules.events_silent,
    knowledge_rules.token_details_off,
    knowledge_rules.tokenizer_mismatch,
    knowledge_rules.block_sizes,
    knowledge_rules.promises_broken,
    knowledge_rules.stale_replica,
    knowledge_rules.redis_degraded,
    knowledge_rules.clock_skew,
)


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    found = [finding for rule in RULES for finding in rule(facts)]
    return tuple(sorted(found, key=lambda finding: -finding.severity))
