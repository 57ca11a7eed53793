"""Policies by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from gateway.errors import ConfigError
from gateway.routing.policies.additive import Additive
from gateway.routing.policies.consistent_hash import ConsistentHash
from gateway.routing.policies.counting import LeastRequests, PowerOfTwo, RoundRobin
from gateway.routing.policies.estimated_ttft import EstimatedTTFT
from gateway.routing.policies.explore import Explore
from gateway.routing.policies.parameters import checked
from gateway.routing.policies.prefix_gate import PrefixGate
from gateway.routing.policies.product import Product
from gateway.routing.policies.session_affinity import SessionAffinity
from gateway.routing.policies.tree_threshold import TreeThreshold
from gateway.routing.policy import Policy

DEFAULT_POLICY = "estimated_ttft"

POLICIES: Mapping[str, Callable[..., Policy]] = MappingProxyType(
    {
        "estimated_ttft": EstimatedTTFT,
        "product": Product,
        "additive": Additive,
        "round_robin": RoundRobin,
        "least_requests": LeastRequests,
        "power_of_two": PowerOfTwo,
        "session_affinity": SessionAffinity,
        "consistent_hash": ConsistentHash,
        "tree_threshold": TreeThreshold,
        "prefix_gate": PrefixGate,
        "explore": Explore,
    }
)


def make_policy(name: str, params: Mapping[str, Any] | None = None, *, random: Random) -> Policy:
    """Raises ConfigError for a name or a parameter that does not exist, listing those that do, and for a
    value that the parameter can't have."""
    factory = POLICIES.get(name)
    if factory is None:
        raise ConfigError(f"unknown policy {name!r}; there are: {', '.join(POLICIES)}")
    accepted = inspect.signature(factory).parameters
    tunable = [p for p in accepted if p not in ("random", "name")]
    given: dict[str, Any] = dict(params or {})
    for param, value in list(given.items()):
        if param not in tunable:
            raise ConfigError(
                f"policy {name!r} has no parameter {param!r}; it has: {', '.join(tunable) or 'none'}"
            )
        given[param] = checked(name, factory, param, value)
    if "random" in accepted:
        given["random"] = random
    return factory(**given)
