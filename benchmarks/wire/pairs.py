"""Two versions asked in turns: which of them first, and what the pairs say together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from typing import Any

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
    of_medians: float
    """The working tree's, of the other's; so are the ratios of pairs."""
    of_pairs: float
    """Their median."""
    least: float
    most: float


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
    ratios = [pair[TREE] / pair[AGAINST] for pair in pairs]
    against, tree = (statistics.median(pair[who] for pair in pairs) for who in (AGAINST, TREE))
    return Compared(against, tree, tree / against, statistics.median(ratios), min(ratios), max(ratios))


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
            f"| {NAMES[name]} | {one.against:.{digits}f} | {one.tree:.{digits}f} | {one.of_medians:.3f} × | "
            f"{one.of_pairs:.3f} × | {one.least:.3f} to {one.most:.3f} × |"
        )
    return "\n".join(lines)


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
