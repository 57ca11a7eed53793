"""The classic illnesses on fleets that really have them, and a healthy fleet that has none."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.e2e.conftest import Fleet, start_fleet
from tests.e2e.sick import ask, chat_body, evidence, examine, examine_under, finding, ids, text

# whole fleets start here: what they need on busy cores
pytestmark = pytest.mark.timeout(400)


def test_a_healthy_fleet_has_no_findings(tiny: Fleet) -> None:
    system = text(1, 60)
    for n in range(12):
        ask(tiny, chat_body(text(n % 4, 20), system=system))
    status, findings = examine_under(
        tiny, lambda n: chat_body(text(n % 6, 12), system=system), clients=2, window=2.0
    )
    assert findings == []
    assert status == 0


def test_kv_contention(tmp_path: Path) -> None:
    args = ["--worker-arg=--num-blocks=40", "--worker-arg=--max-num-seqs=16"]
    with start_fleet(tmp_path, model="sim:100us-per-token,5ms-per-step", workers=1, args=args) as fleet:
        examined = examine_under(fleet, lambda n: chat_body(text(n, 10), max_tokens=200), clients=8)
    found = finding(examined, "kv-contention")
    assert evidence(found, "preemptions") > 0
    assert "max-num-seqs" in found["remedy"][0]
    assert found["runbook"] == "docs/runbooks/kv-contention.md"
    assert examined[0] in (1, 3)
    assert "batch-limit" not in ids(examined)


def test_contention_alone_breaks_no_promise(tmp_path: Path) -> None:
    """Eight prompts come again and again: what is promised to one that waits is gone when its turn comes."""
    args = ["--worker-arg=--num-blocks=40", "--worker-arg=--max-num-seqs=16"]
    with start_fleet(tmp_path, model="sim:100us-per-token,5ms-per-step", workers=1, args=args) as fleet:
        examined = examine_under(
            fleet, lambda n: chat_body(text(n % 8, 10), max_tokens=200), clients=8, window=8.0
        )
        promise = fleet.workers()[0]["promise"]
    assert isinstance(promise, dict)
    assert promise["promises"] >= 5
    assert promise["short_tokens"] > 0.5 * promise["promised_tokens"]
    assert promise["degraded"] is False
    assert "kv-contention" in ids(examined)
    assert "promises-broken" not in ids(examined)


def test_a_low_batch_limit(tmp_path: Path) -> None:
    args = ["--worker-arg=--max-num-seqs=2"]
    with start_fleet(tmp_path, model="sim:10us-per-token,10ms-per-step", workers=1, args=args) as fleet:
        examined = examine_under(fleet, lambda n: chat_body("hello", max_tokens=60), clients=8)
    found = finding(examined, "batch-limit")
    assert evidence(found, "running requests, never more than") == 2
    assert found["severity"] == "critical"
    assert "kv-contention" not in ids(examined)
    assert examined[0] == 3


def test_bandwidth_bound_decode(tmp_path: Path) -> None:
    # 16 GB of weights over 0.24 TB/s: 67 ms a token, whatever the batch
    with start_fleet(tmp_path, model="sim:l4-8b", workers=1) as fleet:
        examined = examine_under(fleet, lambda n: chat_body("hello", max_tokens=40), clients=2, window=7.0)
    found = finding(examined, "bandwidth-bound")
    assert evidence(found, "time between tokens, mean") >= 60
    assert "fp8" in found["remedy"][0]
    assert ids(examined) == {"bandwidth-bound"}
    assert examined[0] == 1


def test_fp8_is_not_advised_to_an_engine_that_has_it(tmp_path: Path) -> None:
    args = ["--worker-arg=--num-blocks=24", "--worker-arg=--kv-dtype=fp8", "--worker-arg=--max-num-seqs=8"]
    with start_fleet(tmp_path, workers=1, args=args) as fleet:
        examined = examine_under(fleet, lambda n: chat_body(text(n, 6), max_tokens=150), clients=6)
    found = finding(examined, "kv-contention")
    assert not any("fp8" in remedy for remedy in found["remedy"])


def test_replies_slow_down_turn_by_turn(tmp_path: Path) -> None:
    args = ["--worker-arg=--no-prefix-caching"]
    with start_fleet(tmp_path, model="sim:500us-per-token", workers=1, args=args) as fleet:
        for chat in range(4):
            random, turns = Random(chat), [text(100 * chat, 40)]
            for turn in range(8):
                ask(fleet, chat_body(*turns, stream=True))
                turns += [f"answer {turn}", text(random.randrange(10**6), 60)]
        examined = examine(fleet.admin, window=0.3)
    found = finding(examined, "context-grows")
    late = [e["name"] for e in found["evidence"]]
    assert "TTFT, turn 1" in late
    assert "trim or summarise" in found["remedy"][0]
    assert finding(examined, "prefix-caching-off")["severity"] == "critical"
    assert ids(examined) == {"context-grows", "prefix-caching-off"}
