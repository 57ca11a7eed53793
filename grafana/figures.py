"""Figures as a reader wants them: by unit, three digits that matter."""

from __future__ import annotations

import math

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("", "K", "Mil", "Bil")
_NOTHING = 1e-9
"""Less is what is left of a subtraction."""
_A_SECOND = {"reqps": " req/s", "ops": " ops/s"}


def figure(value: float, unit: str) -> str:
    """`unit` is one of Grafana's."""
    if math.isnan(value):
        return "no data"
    if abs(value) < _NOTHING:
        value = 0.0
    match unit:
        case "percentunit":
            return f"{100 * value:.3g} %"
        case "s":
            return f"{value:.3g} s" if abs(value) >= 1 or not value else f"{1000 * value:.3g} ms"
        case "bool_yes_no":
            return "yes" if value else "no"
        case "bytes":
            return _scaled(value, 1024, _BINARY)
        case "short" if abs(value) >= 10_000:
            return _scaled(value, 1000, _DECIMAL)
    number = f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return number + _A_SECOND.get(unit, "")


def _scaled(value: float, base: int, names: tuple[str, ...]) -> str:
    power = min(len(names) - 1, int(math.log(abs(value), base))) if abs(value) >= 1 else 0
    # four digits where three are 1.02e+03 of 1,023
    return f"{value / base**power:.{4 if base > 1000 else 3}g} {names[power]}".rstrip()


def step(highest: float, unit: str, most: int = 6) -> float:
    """From one mark of an axis to the next, at most `most` of them up to `highest` (above 0): powers of two
    for bytes, else 1, 2 or 5 times a power of ten."""
    least = highest / most
    if unit == "bytes":
        return float(2 ** math.ceil(math.log2(least)))
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - 1e-9))
