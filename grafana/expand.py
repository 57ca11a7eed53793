"""A panel's expression as Grafana would send it: variables put in."""

from __future__ import annotations

import re
from collections.abc import Mapping

ALL: Mapping[str, str] = {
    "namespace": ".*",
    "job": "prefix-gateway",
    "replica": ".*",
    "model": ".*",
    "worker": ".*",
    "prefill_rate": "8000",
    "objective": "2.5",
}


def expand(
    expr: str,
    *,
    rate_interval: str = "1m",
    whole: str = "1h",
    interval: str = "15s",
    choice: Mapping[str, str] = ALL,
) -> str:
    """`rate_interval`, `whole` (all that is shown) and `interval` (from one point to the next) are Prometheus
    durations. Raises KeyError for a variable nobody gave."""
    values = {"__rate_interval": rate_interval, "__range": whole, "__interval": interval, **choice}
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values[match[1]], expr)
