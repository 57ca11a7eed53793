"""The metrics of several processes as those of one.

Counters and histograms are sums. Of a gauge it depends on what it says: what each process has of its own is
summed, what all of them see alike is taken once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from gateway.processes.families import Family, Mark, Reading


class Rule(Enum):
    SUM = "sum"
    """Each process has its own."""
    MOST = "most"
    """All see the same, or one of them suffices."""
    LEAST = "least"
    """True where it is true of all."""
    MEAN = "mean"
    """Estimates of one thing."""
    FIRST = "first"
    """Whole, from one process: values that only make sense together."""
    OUTSIDE = "outside"
    """What others have, of whom all but those on other machines are in the sum already."""


RULES: Mapping[str, Rule] = {
    "gateway_inflight_requests": Rule.SUM,
    "gateway_peer_inflight_requests": Rule.OUTSIDE,
    "gateway_inflight_limit": Rule.MOST,
    "gateway_waiting_tokens": Rule.SUM,
    "gateway_decoding_tokens": Rule.SUM,
    "gateway_prefill_rate": Rule.MEAN,
    "gateway_queue_requests": Rule.SUM,
    "gateway_queue_limit_requests": Rule.SUM,
    "gateway_hot_prefix_share": Rule.MEAN,
    "gateway_promise_drift_ratio": Rule.MOST,
    "gateway_worker_degraded": Rule.MOST,
    "gateway_worker_ready": Rule.MOST,
    "gateway_worker_state": Rule.FIRST,
    "gateway_breaker_open": Rule.MOST,
    "gateway_capacity_blocks": Rule.MOST,
    "gateway_index_blocks": Rule.MOST,
    "gateway_index_distinct_blocks": Rule.MOST,
    "gateway_index_limit_blocks": Rule.MOST,
    "gateway_events_silent": Rule.MOST,
    "gateway_events_following": Rule.LEAST,
    "gateway_event_orphan_blocks": Rule.MOST,
    "gateway_discovery_up": Rule.LEAST,
    "gateway_discovery_age_seconds": Rule.MOST,
    "gateway_discovery_workers": Rule.MOST,
    "gateway_discovery_unusable": Rule.MOST,
    "gateway_redis_up": Rule.LEAST,
    "gateway_redis_evicts": Rule.MOST,
    "gateway_redis_pending_entries": Rule.SUM,
    "gateway_mirror_current": Rule.LEAST,
    "gateway_index_writer": Rule.SUM,
    "gateway_peers": Rule.LEAST,
    "gateway_sharing_up": Rule.LEAST,
    "gateway_ready": Rule.MOST,
    "gateway_build_info": Rule.MOST,
    "gateway_tasks": Rule.SUM,
    "process_virtual_memory_bytes": Rule.SUM,
    "process_resident_memory_bytes": Rule.SUM,
    "process_open_fds": Rule.SUM,
    "process_max_fds": Rule.LEAST,
    "process_start_time_seconds": Rule.LEAST,
}
"""By family. One that is not here is taken as MOST."""

OWN, OTHERS = "gateway_inflight_requests", "gateway_peer_inflight_requests"

Key: TypeAlias = tuple[str, frozenset[tuple[str, str]]]


def key_of(reading: Reading) -> Key:
    return reading.name, frozenset(reading.labels.items())


def adds_up(family: Family) -> bool:
    return family.type in ("counter", "histogram", "summary")


def merged(processes: Sequence[Sequence[Family]], ended: Sequence[Family] = ()) -> list[Family]:
    """One family of each name, in the order in which they are met. `ended` are the counters and histograms of
    processes that are no more."""
    found: dict[str, list[Family]] = {}
    for families in processes:
        for family in families:
            found.setdefault(family.name, []).append(family)
    gone = {family.name: family for family in ended}
    for name, family in gone.items():
        found.setdefault(name, []).insert(0, family)
    made = {name: _merge(same) for name, same in found.items()}
    if OWN in made and OTHERS in made:
        made[OTHERS] = _outside(made[OTHERS], made[OWN], len(found[OTHERS]))
    return list(made.values())


def _merge(same: Sequence[Family]) -> Family:
    first = same[0]
    rule = Rule.SUM if adds_up(first) else RULES.get(first.name, Rule.MOST)
    if rule is Rule.FIRST:
        return first
    series: dict[Key, list[Reading]] = {}
    for family in same:
        for reading in family.readings:
            series.setdefault(key_of(reading), []).append(reading)
    readings = [
        Reading(
            readings[0].name,
            readings[0].labels,
            _value(rule, [r.value for r in readings]),
            _newest(r.mark for r in readings),
        )
        for readings in series.values()
    ]
    return Family(first.name, first.type, first.text, readings)


def _value(rule: Rule, values: Sequence[float]) -> float:
    if rule is Rule.MOST:
        return max(values)
    if rule is Rule.LEAST:
        return min(values)
    if rule is Rule.MEAN:
        return sum(values) / len(values)
    return sum(values)


def _newest(marks: Iterable[Mark | None]) -> Mark | None:
    known = [mark for mark in marks if mark is not None]
    return max(known, key=lambda mark: mark.at or 0.0) if known else None


def _outside(others: Family, own: Family, processes: int) -> Family:
    """Each process counts its siblings among the others: with n of them, the sum of what they see is n times
    the outside and n - 1 times what is theirs."""
    theirs = {frozenset(r.labels.items()): r.value for r in own.readings}

    def outside(reading: Reading) -> float:
        inside = theirs.get(frozenset(reading.labels.items()), 0.0)
        # words between processes are a moment old: never below nothing
        return max(0.0, round((reading.value - (processes - 1) * inside) / processes))

    readings = [Reading(r.name, r.labels, outside(r)) for r in others.readings]
    return Family(others.name, others.type, others.text, readings)
