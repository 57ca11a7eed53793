"""One of two processes hangs: the other serves, answers at the admin port, and is started again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import wait_until
from tests.e2e.replicas import site
from tests.e2e.test_processes import Clients, Front, front_of, of_each
from tests.servers import standalone

pytestmark = pytest.mark.timeout(300)

KILLED = "a process says nothing; it is killed"
IN_TIME = 20.0
"""Seconds; one that hangs would answer, or end, after 30."""


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    with standalone(tmp_path / "redis") as redis, site(tmp_path / "site", redis.url) as here:
        yield front_of(here, redis, processes=2, engines=1)


@contextmanager
def hanging(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(pid, signal.SIGCONT)


def test_one_that_ends_is_started_again_though_the_other_hangs(front: Front) -> None:
    admin = front.gateway
    hung, ended = front.pids()[0], front.pids()[1]
    policy = {"policy": "round_robin", "model": "sim"}
    assert httpx.put(admin.admin + "/admin/policy", json=policy, trust_env=False).status_code == 200
    with hanging(hung):
        os.kill(ended, signal.SIGKILL)
        wait_until(lambda: len(front.logged("a process begins")) == 3, IN_TIME, "a successor")
        assert front.logged(KILLED) == []
        wait_until(lambda: front.pids().get(1, ended) != ended, 110, "its service")
        body = {"model": "sim", "prompt": [5] * 50, "max_tokens": 2}
        answer = httpx.post(admin.url + "/v1/completions", json=body, trust_env=False, timeout=60)
        assert answer.status_code == 200
        # it knows what was changed before, and answers for all
        policies = httpx.get(admin.admin + "/admin/policy", trust_env=False, timeout=IN_TIME)
        assert policies.json() == {"*": "estimated_ttft", "sim": "round_robin"}
    front.wait()
    assert admin.metric("gateway_process_crashes_total") == 1 + len(front.logged(KILLED))


def test_the_admin_port_answers_though_one_hangs(front: Front) -> None:
    fleet = front.gateway
    with Clients(fleet.url, 4) as clients:
        for turn in range(8):
            assert clients.ask(turn, [turn + 3] * 50).status_code == 200
    wait_until(lambda: fleet.metric("gateway_requests_total") == 8, 30, "eight requests")
    (engine,) = front.engines
    with (
        httpx.Client(base_url=fleet.admin, trust_env=False, timeout=IN_TIME) as admin,
        hanging(front.pids()[0]),
    ):
        # asked first of all: it is still taken for well
        assert admin.get("/admin/policy").json() == {"*": "estimated_ttft"}
        assert fleet.metric("gateway_requests_total") == 8
        assert fleet.metric("gateway_processes") == 2
        assert fleet.metric("gateway_processes_ready") == 1
        why = {row["number"]: row["not_ready"] for row in front.processes()}
        assert why[0].startswith("has said nothing for ")
        assert why[1] is None
        workers = admin.get("/admin/workers")
        assert [row["id"] for row in workers.json()["workers"]] == [engine.url]
        assert workers.headers["x-gateway-unanswered"] == "0"
        with admin.stream("GET", "/ui/live") as page:
            assert next(page.iter_text()).startswith("event: state\ndata: {")

        examined = admin.post("/admin/doctor", params={"window": 1.0})
        assert examined.status_code == 200, examined.text

        # what is to reach all says whom it did not reach
        changed = admin.put("/admin/policy", json={"policy": "round_robin"})
        assert (changed.status_code, changed.json()) == (200, {"*": "round_robin"})
        assert changed.headers["x-gateway-unanswered"] == "0"
        (line,) = front.logged("a change through admin waits for processes that do not answer")
        assert '"numbers": [0]' in line
        verified = admin.post("/admin/index/verify")
        assert verified.status_code == 503
        assert "no answer from process 0; it was done in the others" in verified.json()["error"]["message"]
        fleet.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: bool(front.logged("processes do not answer to a reload")), IN_TIME, "the reload's end"
        )
        assert len(front.logged("settings reloaded")) == 1
    front.wait()
    # and it is done there too, once it is back
    wait_until(
        lambda: of_each(front, "/admin/policy") == [{"*": "round_robin"}] * 2, 30, "the change in both"
    )
    again = httpx.get(fleet.admin + "/admin/workers", trust_env=False, timeout=IN_TIME)
    assert "x-gateway-unanswered" not in again.headers
    assert fleet.metric("gateway_requests_total") == 8


def test_it_holds_up_neither_a_replacement_nor_the_end(front: Front) -> None:
    fleet = front.gateway
    hung = front.pids()[0]
    with hanging(hung):
        wait_until(lambda: says_nothing(front, 0), IN_TIME, "its silence")
        fleet.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: bool(front.logged("all processes were replaced")), 200, "two successors")
    assert not psutil.pid_exists(hung)
    said = [(line["message"], line["number"]) for line in logged(front) if "number" in line]
    replaced = said.index(("a process was replaced", 0))
    # the other's successor begins at once, whether or not the one that hangs is still there
    assert said[replaced + 1] == ("a process begins", 1)
    assert said.count((KILLED, 0)) == 1

    hung = front.pids()[1]
    with hanging(hung), ExitStack() as stack:
        wait_until(lambda: says_nothing(front, 1), IN_TIME, "its silence")
        body = {"model": "sim", "prompt": [5] * 50, "max_tokens": 500, "stream": True, "ignore_eos": True}
        url = fleet.url + "/v1/completions"
        answers = [
            stack.enter_context(httpx.stream("POST", url, json=body, trust_env=False, timeout=60))
            for _ in range(4)
        ]
        pids = list(front.pids().values())
        fleet.process.send_signal(signal.SIGTERM)
        assert [answer.read().endswith(b"data: [DONE]\n\n") for answer in answers] == [True] * 4
        assert fleet.process.wait(100) == 1
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert (KILLED, hung) in [(line["message"], line.get("pid")) for line in logged(front)]
    (line,) = front.logged("processes did not end as they were told to; they were killed")
    assert json.loads(line)["numbers"] == [1]


def says_nothing(front: Front, number: int) -> bool:
    why = {row["number"]: row["not_ready"] or "" for row in front.processes()}
    return why[number].startswith("has said nothing for ")


def logged(front: Front) -> list[dict[str, Any]]:
    return [json.loads(line) for line in front.gateway.log.read_text().splitlines() if line[:1] == "{"]
