"""The same facts from a Prometheus that has watched already (its HTTP API, `query_range`).

Gateways and engines are told apart by their metrics; an engine's url is matched by its `instance` label. What
only the admin port knows (events, policies, reuse, divergence) is asked there where a URL is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from gateway.diagnosis.collect import ENGINE_METRICS, GATEWAY_METRICS, TIMEOUT_S, watch
from gateway.diagnosis.facts import Engine, Facts, Replica
from gateway.diagnosis.series import Scrape, Series
from gateway.errors import UpstreamConnectError, UpstreamProtocolError
from gateway.logins import without_login

MOST_STEPS = 120
"""Points of one series: enough to see a peak, few enough for a fleet."""


async def read_prometheus(
    url: str,
    *,
    now: float,
    window: float,
    admin_urls: Sequence[str] = (),
    token: str | None = None,
) -> Facts:
    """The `window` seconds before `now` (unix time). Raises UpstreamConnectError, UpstreamProtocolError."""
    step = max(1.0, window / MOST_STEPS)
    async with httpx.AsyncClient(trust_env=False, timeout=3 * TIMEOUT_S) as client:
        found: dict[str, dict[float, Scrape]] = {}
        models: dict[str, str] = {}
        for prefix in (*GATEWAY_METRICS, *ENGINE_METRICS):
            rows = await _query(client, url, f'{{__name__=~"{prefix}.*"}}', now - window, now, step)
            for row in rows:
                _put(row, found, models)
    if not found:
        raise UpstreamProtocolError(
            f"{without_login(url)} has no gateway_, vllm: or sglang: metrics in the last {window:.0f} s: "
            "does it scrape the fleet?"
        )
    series = {name: Series([points[at] for at in sorted(points)]) for name, points in found.items()}
    replicas = [Replica(name, one) for name, one in series.items() if _gateway(one)]
    engines = [
        Engine(f"http://{name}", models.get(name, ""), one)
        for name, one in series.items()
        if not _gateway(one)
    ]
    if admin_urls:
        asked = await watch(admin_urls, window=0.0, interval=1.0, token=token)
        replicas = [_with_admin(asked.replicas, replica, i) for i, replica in enumerate(replicas)]
    return Facts(window, replicas, engines)


def _with_admin(asked: Sequence[Replica], replica: Replica, place: int) -> Replica:
    """Admin answers of the same address; where addresses differ (a scrape by pod IP), of the same place."""
    host = {one.name.partition("//")[2]: one for one in asked}
    live = host.get(replica.name) or (asked[place] if place < len(asked) else None)
    if live is None:
        return replica
    return Replica(
        live.name, replica.series, live.before, live.after, live.policies, live.traffic, live.clock_offset_s
    )


def _gateway(series: Series) -> bool:
    return any(name.startswith(GATEWAY_METRICS) for scrape in series.scrapes for name in scrape.samples)


def _put(row: Any, found: dict[str, dict[float, Scrape]], models: dict[str, str]) -> None:
    labels = dict(row["metric"])
    name, instance = labels.pop("__name__"), labels.pop("instance", "")
    labels.pop("job", None)
    if "model_name" in labels:
        models.setdefault(instance, labels["model_name"])
    points = found.setdefault(instance, {})
    for at, value in row["values"]:
        points.setdefault(float(at), Scrape(float(at))).put(name, labels, float(value))


async def _query(
    client: httpx.AsyncClient, url: str, query: str, start: float, end: float, step: float
) -> list[Any]:
    shown = without_login(url)
    params = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
    try:
        answer = await client.get(url.rstrip("/") + "/api/v1/query_range", params=params)
    except httpx.InvalidURL as error:  # which repeats a piece of it
        raise UpstreamConnectError(f"no Prometheus at {shown}: that is no URL") from error
    except httpx.HTTPError as error:
        raise UpstreamConnectError(f"no Prometheus at {shown} ({type(error).__name__}: {error})") from error
    try:
        body = msgspec.json.decode(answer.content)
        if not answer.is_success or body["status"] != "success":
            raise UpstreamProtocolError(f"{shown} refuses the query: {body.get('error', answer.status_code)}")
        rows: list[Any] = body["data"]["result"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise UpstreamProtocolError(
            f"{shown} does not answer as a Prometheus: {answer.status_code}"
        ) from error
    return rows
