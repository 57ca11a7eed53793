"""What a policy's parameters may be, said where they are declared and checked where a policy is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

from gateway.errors import ConfigError

_SHOWN = 40
"""Characters of a value that an error repeats."""


@dataclass(frozen=True, slots=True)
class Between:
    """Both ends included. The upper one is far beyond all use, and near enough that no sum or product of
    parameters and loads leaves what floats can tell apart."""

    least: int
    most: int


Weight: TypeAlias = Annotated[float, Between(0, 1_000_000)]
"""Of a cost, or a share: below zero what costs would draw."""
Tokens: TypeAlias = Annotated[float, Between(0, 1_000_000_000)]
"""As many as no prompt and no queue has: without a limit."""
Limit: TypeAlias = Annotated[int, Between(0, 1_000_000_000)]
"""A number of requests that may differ or wait."""
Blocks: TypeAlias = Annotated[int, Between(1, 1_000_000)]
"""Of a prompt."""


def bounds_of(factory: Callable[..., Any], param: str) -> tuple[type, Between]:
    """What `factory` declares of its parameter: int or float, and between what it must be."""
    kind, *declared = get_args(get_type_hints(factory, include_extras=True)[param])
    (bounds,) = (each for each in declared if isinstance(each, Between))
    return kind, bounds


def checked(policy: str, factory: Callable[..., Any], param: str, value: object) -> int | float:
    """`value` as the parameter `param` of `factory` takes it: within its bounds, whole where it counts
    something. Raises ConfigError, which says what is wanted."""
    kind, bounds = bounds_of(factory, param)
    number = _finite(value)
    outside = number is None or not bounds.least <= number <= bounds.most
    if number is None or outside or (kind is int and number != int(number)):
        wanted = "whole number" if kind is int else "number"
        raise ConfigError(
            f"policy {policy!r}: {param}={_shown(value)} is no {wanted} from {bounds.least:,} to "
            f"{bounds.most:,}",
            param=param,
        )
    return int(number) if kind is int else number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _finite(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer that is larger than any float
        return None
