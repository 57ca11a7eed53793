"""One measured figure over another. What a subtraction leaves (an added time, CPU less what resting takes)
may be nothing but noise: nothing is told by dividing by that."""

from __future__ import annotations

from math import isnan

NOT_MEASURABLE = "not measurable"


def ratio(value: float, of: float) -> float | None:
    """None where `of` is not above 0, or either is NaN."""
    return value / of if of > 0 and not isnan(value) else None


def times(found: float | None, digits: int) -> str:
    """``0.90 ×``"""
    return NOT_MEASURABLE if found is None else f"{found:.{digits}f} ×"
