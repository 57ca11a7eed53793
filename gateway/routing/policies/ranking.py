"""From sort keys to scores, for policies whose rule is an order and not a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def ranks(keys: Sequence[Any]) -> list[float]:
    """0 for the smallest key, 1 for the next larger, …; equal keys share a rank."""
    order = {key: float(rank) for rank, key in enumerate(sorted(set(keys)))}
    return [order[key] for key in keys]
