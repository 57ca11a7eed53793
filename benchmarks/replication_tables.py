"""What the replicas' study says of its samples: tables, and which bounds were met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from textwrap import fill
from typing import Any

Row = dict[str, Any]
WIDTH = 115
"""Of a page's lines."""
JOINING = "a replica joins 1,000,000 blocks"

TIMES = (
    ("replica killed", "load_gone_s", "a killed replica's load vanishes on the others", 3.0),
    ("replica killed", "writers_again_s", "its writer's duties are taken over", 10.0),
    ("one replica cut off from Redis", "load_gone_s", "load of a replica cut off from Redis vanishes", 3.0),
    ("one replica cut off from Redis", "converged_s", "sharing again after that cut was healed", 5.0),
    ("Redis killed", "converged_s", "sharing again after a killed Redis answers", 5.0),
    ("Redis stalled", "converged_s", "sharing again after a stalled Redis goes on", 5.0),
    (
        "FLUSHALL, workers by agents",
        "registered_again_s",
        "all agents registered again after FLUSHALL",
        5.0,
    ),
    ("Sentinel: master killed", "converged_s", "sharing again after Sentinel has named a master", 5.0),
    (
        "Cluster: a master killed and back",
        "converged_s",
        "sharing again after the cluster counts a master in again",
        5.0,
    ),
    (JOINING, "ready_s", "a new replica has loaded 1,000,000 blocks and is ready, by the clock", 30.0),
    (JOINING, "cpu_s", "the same in seconds of its own core, start of the process included", 30.0),
)
"""Scenario, figure, in words, and the bound in seconds."""


ADDED_MS = 5.0
"""What the loss of Redis may add to a request's p99."""
REDIS_LOST = (
    "Redis killed", "Redis stalled", "FLUSHALL, workers by agents", "one replica cut off from Redis",
    "Sentinel: master killed", "Cluster: a master killed and back",
)  # fmt: skip


def p99(windows: Iterable[Row]) -> tuple[float, float]:
    """Of all their requests together, in ms, and by how much chance alone may have it off: half of the
    interval that holds the true one nine times in ten (order statistics, with ranks of the binomial
    distribution). The larger of the two middle ones where 99 % falls between two. A window keeps its slowest
    tenth."""
    total = 0
    worst: list[float] = []
    for window in windows:
        total += window["n"]
        worst += window["worst_ms"]
    worst.sort(reverse=True)
    rank = total - 1 - min(total - 1, total * 99 // 100)
    reach = ceil(1.645 * sqrt(total * 0.01 * 0.99))
    low, high = max(0, rank - reach), min(len(worst) - 1, rank + reach)
    return worst[rank], (worst[low] - worst[high]) / 2


@dataclass(frozen=True, slots=True)
class Added:
    """p99 of a group in calm and since the loss, ms."""

    calm: float
    rough: float
    control_calm: float
    control_rough: float
    chance: float

    @property
    def ms(self) -> float:
        """What the loss adds: the replicas' change less the control's, which the loss does not touch."""
        return (self.rough - self.calm) - (self.control_rough - self.control_calm)

    @property
    def verdict(self) -> str:
        if self.ms <= ADDED_MS:
            return "met"
        return "missed" if self.ms - self.chance > ADDED_MS else "unclear"


def added(rounds: Sequence[Row]) -> Added:
    found = [
        p99(each[name] for each in rounds) for name in ("calm", "rough", "control_calm", "control_rough")
    ]
    calm, rough, control_calm, control_rough = (value for value, _ in found)
    return Added(calm, rough, control_calm, control_rough, sqrt(sum(chance**2 for _, chance in found)))


def by_scenario(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "answers" in row:
            groups.setdefault(row["scenario"], []).append(row)
    return groups


def requests(rows: Iterable[Row]) -> str:
    """Each scenario's rounds, requests, answers other than 200, and what the trouble added to p99."""
    lines = [
        "| what was lost | rounds | requests | other answers than 200 | replicas' p99, ms "
        f"| control's p99, ms | added, ms | under {ADDED_MS:g} ms |",
        "|---|--:|--:|---|--:|--:|--:|---|",
    ]
    for scenario, own in by_scenario(rows).items():
        other: dict[str, int] = {}
        for row in own:
            for status, count in row["answers"].items():
                if status != "200":
                    other[status] = other.get(status, 0) + count
        said = ", ".join(
            f"{count} broken off" if status == "0" else f"{count} × {status}"
            for status, count in sorted(other.items())
        )
        total, found = sum(row["requests"] for row in own), added(own)
        verdict = found.verdict if scenario in REDIS_LOST else ""
        lines.append(
            f"| {scenario} | {len(own)} | {total:,} | {said or 'none'} "
            f"| {found.calm:.1f} → {found.rough:.1f} | {found.control_calm:.1f} → {found.control_rough:.1f} "
            f"| {found.ms:.1f} ± {found.chance:.1f} "
            f"| {verdict} |"
        )
    return "\n".join(lines)


def cpu(rows: Iterable[Row]) -> str:
    """What a gateway uses of a core, in ms a second: nothing else on the machine changes that much."""
    lines = ["| what was lost | a replica: before → since | the control: before → since |", "|---|--:|--:|"]
    for scenario, own in by_scenario(rows).items():
        calm, rough, control_calm, control_rough = (
            1000 * sum(row[name]["cpu"] for row in own) / len(own)
            for name in ("calm", "rough", "control_calm", "control_rough")
        )
        lines.append(f"| {scenario} | {calm:.0f} → {rough:.0f} | {control_calm:.0f} → {control_rough:.0f} |")
    return "\n".join(lines)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Each bound of the issue, met or missed, a line."""
    said = []
    for scenario, own in by_scenario(rows).items():
        if scenario in REDIS_LOST:
            found = added(own)
            said.append(f"{found.verdict}: {scenario}: {found.ms:.1f} ± {found.chance:.1f} ms added to p99")
            failed = sum(count for row in own for status, count in row["answers"].items() if status != "200")
            said.append(f"{'missed' if failed else 'met'}: {scenario}: {failed} requests failed")
    for scenario, figure, words, bound in TIMES:
        values = [row[figure] for row in rows if row["scenario"] == scenario and figure in row]
        if values:
            word = "met" if max(values) <= bound else "missed"
            said.append(f"{word}: {words}: {_range(values)} s, bound {bound:g} s")
    return said


def times(rows: Sequence[Row]) -> str:
    """What was measured against its bound."""
    lines = ["| | measured, s | bound | kept |", "|---|--:|--:|---|"]
    for scenario, figure, words, bound in TIMES:
        values = [row[figure] for row in rows if row["scenario"] == scenario and figure in row]
        if values:
            kept = sum(value <= bound for value in values)
            word = "yes" if kept == len(values) else f"{kept} of {len(values)} times"
            lines.append(f"| {words} | {_range(values)} | {bound:g} | {word} |")
    return "\n".join(lines)


def sizing(memory: Row) -> str:
    """Bytes a block."""
    return "\n".join(
        (
            "| | bytes a block |",
            "|---|--:|",
            f"| Redis, `held` | {memory['held']:.0f} |",
            f"| Redis, `names` | {memory['names']:.0f} |",
            f"| Redis, `changes` (bounded, {memory['stream_bytes'] / 1e6:.0f} MB at most here) "
            f"| {memory['stream']:.0f} |",
            f"| Redis, all that the server uses more | {memory['redis']:.0f} |",
            f"| a mirror: what the process uses more | {memory['mirror']:.0f} |",
        )
    )


def loading(memory: Row, told: Row) -> str:
    """`memory` knows what else the machine was doing meanwhile."""
    return fill(
        f"A replica that starts loads these {memory['blocks']:,} blocks of {memory['workers']} workers in "
        f"{memory['loaded_s']:.1f} s ({memory['loaded_cpu_s']:.1f} s of CPU); a request that comes meanwhile "
        f"waits for its turn at most {memory['longest_wait_ms']:.0f} ms. {state({**told, **memory})}",
        width=WIDTH,
    )


def state(told: Row) -> str:
    """What the figures were taken on, in a sentence."""
    before, after = told["load_before"], told["load_after"]
    return (
        f"Measured on {told['cores']} cores ({told['cpu']}), Python {told['python']}, {told['server']}; load "
        f"average {before:.1f} before and {after:.1f} at the end."
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} – {high}"
