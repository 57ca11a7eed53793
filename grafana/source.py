"""What a Prometheus answers to a panel's queries."""

from __future__ import annotations

import json
import math
import time
import urllib.parse
import urllib.request
from typing import Any

from grafana.expand import expand
from grafana.panels import Query

Rows = list[dict[str, Any]]
POINTS = 120


class Source:
    """The last `minutes` of the Prometheus at `url`."""

    def __init__(self, url: str, minutes: float) -> None:
        self._url = url.rstrip("/")
        self.end = time.time()
        self.start = self.end - 60 * minutes
        self._step = max(1.0, 60 * minutes / POINTS)

    @property
    def minutes(self) -> float:
        return (self.end - self.start) / 60

    def now(self, query: Query) -> Rows:
        return self._get("query", query=self._expr(query), time=self.end)

    def range(self, query: Query) -> Rows:
        return self._get(
            "query_range", query=self._expr(query), start=self.start, end=self.end, step=self._step
        )

    def lines(self, query: Query) -> list[tuple[dict[str, str], list[float], list[float]]]:
        """(labels, minutes before the end, values) of each series."""
        return [
            (
                row["metric"],
                [(float(at) - self.end) / 60 for at, _ in row["values"]],
                [float(value) for _, value in row["values"]],
            )
            for row in self.range(query)
        ]

    def _expr(self, query: Query) -> str:
        seconds = int(self.end - self.start)
        return expand(
            query.expr, rate_interval="20s", whole=f"{seconds}s", interval=f"{math.ceil(self._step)}s"
        )

    def _get(self, path: str, **params: Any) -> Rows:
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the caller's own Prometheus
            rows: Rows = json.load(answer)["data"]["result"]
        return rows
