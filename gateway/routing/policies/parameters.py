"""What a policy's parameters may be, said where they are declared and checked where a policy is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AtLeast:
    least: float


Weight: TypeAlias = Annotated[float, AtLeast(0)]
"""Of a cost, a share or a number of tokens: below zero what costs would draw."""
Limit: TypeAlias = Annotated[int, AtLeast(0)]
"""A number of requests that may differ or wait."""
Count: TypeAlias = Annotated[int, AtLeast(1)]


def checked(policy: str, factory: Callable[..., Any], param: str, value: object) -> int | float:
    """`value` as the parameter `param` of `factory` takes it: finite, no less than it may be, whole where it
    counts something. Raises ConfigError, which says what is wanted."""
    hint = get_type_hints(factory, include_extras=True)[param]
    kind, *bounds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    least = max((bound.least for bound in bounds if isinstance(bound, AtLeast)), default=-math.inf)
    number = _finite(value)
    if number is None or number < least or (kind is int and number != int(number)):
        wanted = "whole number" if kind is int else "finite number"
        bound = "" if least == -math.inf else f" of {least:g} or more"
        raise ConfigError(f"policy {policy!r}: {param}={value!r} is no {wanted}{bound}", param=param)
    return int(number) if kind is int else number


def _finite(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer that is larger than any float
        return None
