"""What breaks in operation: a killed engine, hidden metrics, promises that nobody keeps, full holders."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import httpx
import pytest

from gateway.diagnosis.collect import watch
from gateway.diagnosis.diagnose import diagnose
from gateway.diagnosis.finding import Evidence, Severity
from tests.e2e.conftest import ROOT, Fleet, wait_until
from tests.e2e.front import CHAT, front
from tests.e2e.sick import (
    EngineSpec,
    ask,
    chat_body,
    engine_processes,
    engines,
    evidence,
    examine,
    finding,
    gateway,
    ids,
    of,
    text,
)

# whole fleets start here: what they need on busy cores
pytestmark = pytest.mark.timeout(400)


def test_a_killed_worker(
    tmp_path: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_HEALTH_INTERVAL", "0.2")
    with (
        engine_processes(tmp_path, [EngineSpec("mortal"), EngineSpec("mortal")], free_port) as started,
        gateway(tmp_path, [line for line, _ in started], free_port) as fleet,
    ):
        one, other = (line.partition(",")[0] for line, _ in started)

        def up() -> set[str]:
            return {row["url"] for row in fleet.workers() if row["state"] == "ready"}

        wait_until(lambda: up() == {one, other}, 60, "two workers")
        started[0][1].kill()
        wait_until(lambda: up() == {other}, 60, "one worker down")
        examined = examine(fleet.admin, window=0.3)
        found = finding(examined, "worker-down")
        assert (found["subject"], found["severity"]) == (one, "warning")
        assert evidence(found, "state") == "unhealthy"
        assert evidence(found, "reason") == found["cause"] != "none given"
        assert evidence(found, "other workers for its model") == "yes"
        # a dead process has no metrics either; the one that lives has nothing
        assert of(examined, one) == {"worker-down", "engine-metrics-missing"}
        assert of(examined, other) == of(examined, "mortal") == set()
        assert examined[0] == 1

        started[1][1].kill()
        wait_until(lambda: not up(), 60, "both workers down")
        examined = examine(fleet.admin, window=0.3)
        downs = [found for found in examined[1] if found["id"] == "worker-down"]
        assert {found["subject"] for found in downs} == {one, other}
        assert {evidence(found, "other workers for its model") for found in downs} == {"none"}
        assert examined[0] == 3


def test_a_worker_that_was_killed_and_came_back(
    tmp_path: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ready again by the end of the window, and has nothing in its cache."""
    monkeypatch.setenv("GATEWAY_HEALTH_INTERVAL", "0.2")
    with (
        engine_processes(tmp_path, [EngineSpec("reborn")], free_port) as started,
        gateway(tmp_path, [line for line, _ in started], free_port) as fleet,
    ):
        ((line, process),) = started
        url = line.partition(",")[0]
        for n in range(3):
            ask(fleet, chat_body(text(n, 60)))
        wait_until(lambda: fleet.workers()[0]["indexed_blocks"] > 0, 30, "blocks that are known")
        assert "worker-restarted" not in ids(examine(fleet.admin, window=0.3))
        lives = [process]

        def kill_and_start(_: float, __: float) -> None:
            if len(lives) > 1:
                return
            process.kill()
            process.wait(30)
            lives.append(subprocess.Popen(process.args, stdin=subprocess.DEVNULL, cwd=ROOT))
            wait_until(lambda: epochs(fleet) > 0 and fleet.workers()[0]["state"] == "ready", 60, "its return")

        try:
            facts = asyncio.run(watch([fleet.admin], window=0.3, interval=0.1, progress=kill_and_start))
        finally:
            lives[-1].terminate()
            lives[-1].wait(30)
        (found,) = (one for one in diagnose(facts) if one.id == "worker-restarted")
        assert (found.subject, found.severity) == (url, Severity.WARNING)
        assert Evidence("restarts in the window", 1) in found.evidence
        assert Evidence("blocks it holds again", 0) in found.evidence


def epochs(fleet: Fleet) -> int:
    return int(fleet.workers()[0]["events"]["epochs"])


def test_metrics_behind_a_404(tmp_path: Path, free_port: Callable[[], int]) -> None:
    with engines(tmp_path, [EngineSpec("hidden")], free_port) as (line,):
        url, _, options = line.partition(",")
        with (
            front(url, withheld=["/metrics"]) as ingress,
            gateway(tmp_path, [f"{ingress},{options}"], free_port) as fleet,
        ):
            for n in range(3):
                ask(fleet, chat_body(text(n, 30)))
            examined = examine(fleet.admin, window=0.3)
            found = finding(examined, "engine-metrics-missing")
            assert (found["subject"], found["severity"]) == (ingress, "warning")
            assert evidence(found, "error") == "/metrics answers 404"
            # it serves all the same
            assert ids(examined) == {"engine-metrics-missing"}
            assert examined[0] == 1


def test_promises_that_nobody_keeps(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """A load balancer with two engines is registered as one worker: events come from the first alone, and
    every second chat goes to the other."""
    with engines(tmp_path, [EngineSpec("two-in-one"), EngineSpec("two-in-one")], free_port) as lines:
        (first, _, options), (second, _, _) = (line.partition(",") for line in lines)
        with (
            front(first, second) as balancer,
            gateway(tmp_path, [f"{balancer},{options}"], free_port) as fleet,
        ):
            promised = 0
            for n in range(6):
                body = chat_body(text(n, 60))
                assert ask(fleet, body).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
                fleet.settle()
                usage = ask(fleet, body).json()["usage"]
                assert usage["prompt_tokens_details"]["cached_tokens"] == 0
                # all whole blocks, of which the last token is computed always
                promised += (usage["prompt_tokens"] - 1) // 16 * 16
            examined = examine(fleet.admin, window=0.3)
            found = finding(examined, "promises-broken")
            assert (found["subject"], found["severity"]) == (balancer, "critical")
            assert evidence(found, "promises") == 6
            assert evidence(found, "tokens promised") == evidence(found, "tokens missing") == promised
            # six misses of a tenth each: 1 - 0.9 ** 6
            assert evidence(found, "drift") == "47 %"
            assert ids(examined) == {"promises-broken"}
            assert examined[0] == 3


def test_affinity_lost_to_overload(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """Two requests at a time share a long prompt, and a worker takes one: the other is computed again."""
    spec = EngineSpec("crowded", ["--model", "sim:5ms-per-step"], options=",max_requests=1")
    with engines(tmp_path, [spec, spec], free_port) as lines, gateway(tmp_path, lines, free_port) as fleet:
        done = threading.Event()

        def pairs() -> None:
            with httpx.Client(trust_env=False, timeout=90, base_url=fleet.url) as client:
                for n in count():
                    if done.is_set():
                        return
                    body = {"model": "crowded", **chat_body(text(n, 200), stream=True)}
                    # the first one is still at it when the second has been answered
                    with client.stream("POST", CHAT, json={**body, "max_tokens": 1000}) as answer:
                        chunks = answer.iter_bytes()  # held, since its end would close the answer
                        next(chunks)
                        client.post(CHAT, json=body).raise_for_status()

        busy = threading.Thread(target=pairs)
        busy.start()
        try:
            examined = examine(fleet.admin, window=6.0)
        finally:
            done.set()
            busy.join()
    found = finding(examined, "affinity-lost")
    assert (found["subject"], found["severity"]) == ("crowded", "warning")
    assert evidence(found, "policy") == "estimated_ttft"
    # half of the prompts are there already, at a worker that is full
    assert 40 <= int(evidence(found, "reusable somewhere in the fleet").split()[0]) <= 60
    assert int(evidence(found, "held by the chosen worker").split()[0]) <= 5
    assert "busy, full or refused" in found["cause"]
    assert "raise max_requests" in found["remedy"][0]
    assert ids(examined) == {"affinity-lost"}
    assert examined[0] == 1
