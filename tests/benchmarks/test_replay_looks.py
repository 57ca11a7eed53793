"""Lines of one picture are told apart by everybody."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from benchmarks.replay.cases import FLOOR, HINDSIGHT
from benchmarks.replay.looks import COLOURS, LOOKS, MARKERS, looks
from gateway.routing.registry import POLICIES

SEEN = {
    "all": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip
"""What becomes of linear RGB: Machado, Oliveira and Fernandes (2009), severity 1."""
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
"""Of sRGB under D65 (IEC 61966-2-1)."""


def lab(colour: str, seen: object) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.asarray(seen) @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_lab_is_what_the_standard_says() -> None:
    assert lab("#ffffff", SEEN["all"]) == pytest.approx([100, 0, 0], abs=0.01)
    assert lab("#ff0000", SEEN["all"]) == pytest.approx([53.24, 80.09, 67.20], abs=0.02)


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
def test_no_two_colours_look_alike_to_anybody(seen: object) -> None:
    """Two of matplotlib's ten are 4.6 apart for some; from 10 on nobody takes one for the other."""
    seen_as = [lab(colour, seen) for colour in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen_as, 2)) > 16
    assert max(colour[0] for colour in seen_as) < 75  # and none is lost on white


def test_every_policy_has_a_colour_and_a_marker_of_its_own() -> None:
    assert LOOKS.keys() == {FLOOR, *POLICIES}
    assert (
        len({look.colour for look in LOOKS.values()}) == len({look.marker for look in LOOKS.values()}) == 12
    )


def test_it_looks_the_same_in_every_picture_and_others_take_what_is_free() -> None:
    made = looks(["estimated_ttft × 3", FLOOR, HINDSIGHT, "estimated_ttft"])
    assert list(made) == ["estimated_ttft × 3", FLOOR, HINDSIGHT, "estimated_ttft"]
    assert (made[FLOOR], made["estimated_ttft"]) == (LOOKS[FLOOR], LOOKS["estimated_ttft"])
    assert len({look.colour for look in made.values()}) == len({look.marker for look in made.values()}) == 4


def test_many_variants_differ_in_one_of_both() -> None:
    made = looks([*LOOKS, *(f"estimated_ttft:work_weight={n}" for n in range(132))])
    assert len(set(made.values())) == 144 == len(COLOURS) * len(MARKERS)
    assert len(looks(map(str, range(200)))) == 200
