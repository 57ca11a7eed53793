"""The bar: promised equals delivered on every request of a workload that the caches can't hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import exactness
from benchmarks.demo import SYSTEM, Client
from benchmarks.fleet import Fleet as Measured
from tests.e2e.conftest import Fleet, start_fleet

REQUESTS = 300
"""`make exactness` sends 1,000, in CI too."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two tiny workers with caches of 96 blocks: most of the workload is evicted before it returns."""
    arguments = ["--num-blocks", "96", "--max-model-len", "512"]
    flags = [flag for a in arguments for flag in ("--worker-arg", a)]
    with start_fleet(tmp_path_factory.mktemp("exact"), args=flags) as fleet:
        yield fleet


@pytest.mark.timeout(600)
def test_every_promise_is_what_the_engine_delivers(small: Fleet) -> None:
    verdicts = exactness.run(
        Measured(small.url, small.admin), requests=REQUESTS, seed=7, settle=0.005, max_prompt=400, quiet=True
    )
    assert [v for v in verdicts if not v.exact] == []
    assert len(verdicts) == REQUESTS
    assert {"chat", "messages", "responses"} <= {v.kind for v in verdicts if v.cached}
    # the workload did what it is for: hits on both workers, and far more blocks than the caches hold
    assert len({v.worker for v in verdicts if v.cached}) == 2
    blocks = sum((v.prompt_tokens - v.cached) // 16 for v in verdicts)
    assert blocks > 3 * 2 * 96
    assert small.metric("gateway_promise_drift_tokens_total") == 0
    assert small.metric("gateway_tokenizer_checks_total", result="mismatch") == 0


def test_the_demo_begins_an_arm_when_the_index_has_heard_that_the_caches_are_empty(small: Fleet) -> None:
    """An engine says so with its next step only: what it held would be promised to the first request."""
    client = Client(Measured(small.url, small.admin))
    messages = [{"role": "user", "content": SYSTEM[:400]}]
    try:
        client.ask("affinity", "question", 0, messages)
        client.start_arm("round_robin")
        samples = [client.ask("round robin", "question", 0, messages)[0] for _ in range(2)]
    finally:
        client.close()
    assert [(s.matched_tokens, s.cached_tokens) for s in samples] == [(0, 0), (0, 0)]
    assert len({s.worker for s in samples}) == 2
