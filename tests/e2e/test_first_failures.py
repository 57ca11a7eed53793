"""The first failure there ever was, seen by a real Prometheus: it has a rate, so that an alert can ring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import wait_until
from tests.e2e.prometheus import prometheus
from tests.e2e.sick import EngineSpec, engine_processes, gateway

pytestmark = pytest.mark.timeout(700)


def test_the_first_failure_of_a_fleet_is_an_increase_of_one(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    # their events would break off, and tell that they are gone before a request does
    silent = [EngineSpec("m", events=False)] * 2
    with (
        engine_processes(tmp_path / "engines", silent, free_port) as engines,
        gateway(tmp_path, [line for line, _ in engines], free_port) as fleet,
        prometheus(tmp_path / "prometheus", {"g": [fleet.admin.removeprefix("http://")]}) as watcher,
    ):
        retries = "sum(increase(gateway_retries_total[1m]))"
        errors = 'sum(increase(gateway_requests_total{code=~"5.."}[1m]))'
        errors_of = 'sum by (model) (rate(gateway_requests_total{code=~"5.."}[5m]))'

        def value(expr: str) -> float | None:
            rows = watcher.query(expr)
            return float(rows[0]["value"][1]) if rows else None

        # both are known, at zero
        wait_until(lambda: value(retries) == value(errors) == 0, 60, "two scrapes")
        for _, process in engines:
            process.kill()
            process.wait()
        body = {"model": "m", "messages": [{"role": "user", "content": "Is anybody there?"}]}
        answer = httpx.post(fleet.url + "/v1/chat/completions", json=body, trust_env=False, timeout=60)
        assert answer.status_code == 502
        # the first try moved on, the second was the answer; what is between two scrapes is estimated
        wait_until(lambda: round(value(retries) or 0) == round(value(errors) or 0) == 1, 30, "an increase")
        assert {row["metric"]["model"] for row in watcher.query(f"{errors_of} > 0")} == {"m"}
