"""All rules over the facts: worst finding first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.diagnosis import engine_rules, knowledge_rules, traffic_rules
from gateway.diagnosis.facts import Facts
from gateway.diagnosis.finding import Finding

Rule = Callable[[Facts], Iterator[Finding]]

RULES: Sequence[Rule] = (
    knowledge_rules.workers_down,
    knowledge_rules.worker_restarted,
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


IMPLIES: Mapping[str, frozenset[str]] = MappingProxyType(
    {"prefix-caching-off": frozenset(("events-silent", "promises-broken"))}
)
"""A cause, and the symptoms on the same worker that need no finding of their own beside it."""


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    found = [finding for rule in RULES for finding in rule(facts)]
    told = {
        (_engine(cause.subject), symptom) for cause in found for symptom in IMPLIES.get(cause.id, frozenset())
    }
    causes = [finding for finding in found if (_engine(finding.subject), finding.id) not in told]
    return tuple(sorted(causes, key=lambda finding: -finding.severity))


def document(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """What was looked at and what was found, as JSON has it."""
    return {
        "window_s": round(facts.window_s, 3),
        "replicas": [replica.name for replica in facts.replicas],
        "engines": [engine.url for engine in facts.engines],
        "rules": len(RULES),
        "findings": [finding.as_dict() for finding in findings],
    }


def _engine(subject: str) -> str:
    """Of a worker's id; data-parallel ranks share theirs."""
    return subject.partition("#")[0]
