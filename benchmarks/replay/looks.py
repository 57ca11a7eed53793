"""What each policy looks like in a picture: a colour and a marker that no other has, the same in all of them.

The colours are told apart by people who see no red, no green or no blue, too: from Okabe and Ito's and Paul
Tol's palettes, those twelve whose closest two are farthest apart for everybody (tests/benchmarks).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.replay.cases import FLOOR
from gateway.routing.registry import POLICIES


class Look(NamedTuple):
    colour: str
    marker: str


COLOURS = (
    "#000000", "#D55E00", "#56B4E9", "#CC6677", "#006CD1", "#E69F00", "#882255", "#661100", "#117733",
    "#332288", "#CC79A7", "#AA4499",
)  # fmt: skip
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "*", "p", "h")

LOOKS = MappingProxyType(
    {
        name: Look(*pair)
        for name, pair in zip((FLOOR, *POLICIES), zip(COLOURS, MARKERS, strict=True), strict=True)
    }
)


def looks(policies: Iterable[str]) -> dict[str, Look]:
    """By name, in order. Who is not known gets what none of the others has, while there is such: 144."""
    policies = list(policies)
    own = {policy: LOOKS[policy] for policy in policies if policy in LOOKS}
    free = _others(set(own.values()))
    return {policy: own.get(policy) or next(free) for policy in policies}


def _others(taken: set[Look]) -> Iterator[Look]:
    """First those whose colours and markers nobody has."""
    pairs = [
        Look(colour, MARKERS[(place + shift) % len(MARKERS)])
        for shift in range(len(MARKERS))
        for place, colour in enumerate(COLOURS)
    ]
    return cycle(look for look in pairs if look not in taken)
