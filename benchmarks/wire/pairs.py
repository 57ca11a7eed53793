"""Two versions asked in turns: which of them first, and what the pairs say together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from typing import Any

from benchmarks.ratios import NOT_MEASURABLE, ratio, times

AGAINST, TREE = "against", "tree"
NAMES = {"json_200": "a JSON request of 200 tokens", "json_8000": "one of 8,000", "chunk": "a paced chunk"}
Pair = Mapping[str, float]
"""CPU µs of either version, measured one after the other."""
Round = Mapping[str, Pair]
"""A pair of each figure."""


@dataclass(frozen=True, slots=True)
class Compared:
    against: float
    tree: float
    """Medians, µs."""
    of_medians: float | None
    """The working tree's, of the other's; so are the ratios of pairs. None where the other's is lost in
    noise, as little more than what resting takes can be."""
    of_pairs: float | None
    """Their median; where one of them is none, so are these."""
    least: float | None
    most: float | None


def order(number: int) -> tuple[str, str]:
    """Of round `number`, from 0: A B, B A, so that nobody is always second, or gains by a machine that grows
    quicker."""
    return (AGAINST, TREE) if number % 2 == 0 else (TREE, AGAINST)


def shares(rounds: int, starts: int) -> list[range]:
    """The rounds of each start, of `rounds` in all; as equal as can be, and none without any."""
    starts = min(starts, rounds)
    borders = [n * rounds // starts for n in range(starts + 1)]
    return [range(begin, end) for begin, end in pairwise(borders)]


def compared(pairs: Sequence[Pair]) -> Compared:
    against, tree = (statistics.median(pair[who] for pair in pairs) for who in (AGAINST, TREE))
    ratios = [found for pair in pairs if (found := ratio(pair[TREE], pair[AGAINST])) is not None]
    if len(ratios) < len(pairs):
        return Compared(against, tree, ratio(tree, against), None, None, None)
    of_pairs = statistics.median(ratios), min(ratios), max(ratios)
    return Compared(against, tree, ratio(tree, against), *of_pairs)


def figures(rounds: Sequence[Round]) -> dict[str, Compared]:
    return {name: compared([found[name] for found in rounds]) for name in rounds[0]}


def table(found: Mapping[str, Compared]) -> str:
    lines = [
        "| CPU µs | against | working tree | ratio of medians | median of pairs' ratios | single pairs |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, one in found.items():
        digits = 1 if name == "chunk" else 0
        lines.append(
            f"| {NAMES[name]} | {one.against:.{digits}f} | {one.tree:.{digits}f} "
            f"| {times(one.of_medians, 3)} | {times(one.of_pairs, 3)} | {_span(one)} |"
        )
    return "\n".join(lines)


def _span(one: Compared) -> str:
    if one.least is None or one.most is None:
        return NOT_MEASURABLE
    return f"{one.least:.3f} to {times(one.most, 3)}"


def said(number: int, rounds: int, found: Round) -> str:
    """One round, for whoever waits."""
    told = "; ".join(f"{NAMES[name]} {pair[AGAINST]:.1f} → {pair[TREE]:.1f}" for name, pair in found.items())
    return f"round {number + 1} of {rounds}: {told}"


def machine(told: Mapping[str, Any], row: str, starts: int) -> str:
    return fill(
        f"{told['date']}: {told['cores']} cores ({told['cpu']}), both on Python {told['gateway_python']}, as "
        f"*ours, {row}*; {told['rounds']} rounds of {told['seconds']:g} s a figure and version, "
        f"{starts} starts of both. "
        f"Load average {told['load_before']:.1f} before, {told['load_after']:.1f} at the end.",
        width=115,
    )
