"""The doctor reads a real Prometheus that has watched, in place of watching."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import start_fleet, wait_until
from tests.e2e.prometheus import prometheus
from tests.e2e.sick import chat_body, evidence, examine, finding, ids, model_of

pytestmark = pytest.mark.timeout(400)


def test_a_batch_limit_that_prometheus_saw(tmp_path: Path) -> None:
    args = ["--worker-arg=--max-num-seqs=2"]
    done = threading.Event()
    with start_fleet(tmp_path, model="sim:10us-per-token,10ms-per-step", workers=1, args=args) as fleet:
        engine = fleet.workers()[0]["url"].partition("//")[2]
        gateway = fleet.admin.partition("//")[2]
        body = {"model": model_of(fleet), **chat_body("hello", max_tokens=60)}

        def keep_asking() -> None:
            with httpx.Client(trust_env=False, timeout=90) as client:
                while not done.is_set():
                    client.post(fleet.url + "/v1/chat/completions", json=body)

        crowd = [threading.Thread(target=keep_asking) for _ in range(8)]
        with prometheus(tmp_path / "prometheus", {"gateway": [gateway], "engine": [engine]}) as watching:
            for asker in crowd:
                asker.start()
            try:
                wait_until(
                    lambda: any(
                        float(row["value"][1]) >= 8
                        for row in watching.query(
                            'count_over_time({__name__="vllm:generation_tokens_total"}[5m])'
                        )
                    ),
                    90,
                    "eight scrapes",
                )
                # still at work, so that what is looked back upon is work
                alone = examine(args=["--prometheus", watching.url], window=8)
                both = examine(fleet.admin, args=["--prometheus", watching.url], window=8)
            finally:
                done.set()
                for asker in crowd:
                    asker.join()
    found = finding(alone, "batch-limit")
    assert evidence(found, "running requests, never more than") == 2
    assert ids(alone) == ids(both) == {"batch-limit"}
    assert alone[0] in (1, 3)


def test_no_prometheus_exits_with_2() -> None:
    with pytest.raises(AssertionError, match="no Prometheus at"):
        examine(args=["--prometheus", "http://127.0.0.1:9"])
