"""`serve --processes 3`: one port, three processes, one knowledge; crashes, replacement, an orderly end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.store.keys import Keys
from gateway.types import WorkerId
from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.replicas import Engine, Site, site
from tests.e2e.test_lifecycle import run
from tests.e2e.test_replicas import cached, conversation, promised
from tests.servers import Server, standalone

pytestmark = pytest.mark.timeout(300)

N = 3


@dataclass
class Front:
    """A gateway of three processes and what is behind it."""

    site: Site
    redis: Server
    engines: list[Engine]
    gateway: Fleet
    config: Path
    """Empty at first."""
    count: int

    def processes(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.gateway.get("/admin/processes")["processes"]
        return rows

    def pids(self) -> dict[int, int]:
        return {row["number"]: row["pid"] for row in self.processes() if row["state"] == "serving"}

    def all_serve(self) -> bool:
        rows = self.processes()
        return len(rows) == self.count and all(
            r["state"] == "serving" and r["not_ready"] is None for r in rows
        )

    def wait(self) -> None:
        wait_until(self.all_serve, 110, "processes that all serve")

    def logged(self, message: str) -> list[str]:
        return [line for line in self.gateway.log.read_text().splitlines() if f'"{message}"' in line]


def front_of(here: Site, redis: Server, *, processes: int = N, engines: int = 2) -> Front:
    behind = [here.engine("sim:50us-per-token,1ms-per-step") for _ in range(engines)]
    here.wait(*behind)
    config = here.folder / "gateway.yaml"
    config.touch()
    gateway = here.gateway("--processes", str(processes), "--config", str(config), engines=behind)
    wait_until(lambda: answers_at(gateway), 110, "an admin port")
    front = Front(here, redis, behind, gateway, config, processes)
    front.wait()
    wait_until(lambda: len(ready(gateway)) == engines, 110, "ready workers")
    return front


def answers_at(gateway: Fleet) -> bool:
    assert gateway.process.poll() is None, gateway.output()
    try:
        return httpx.get(gateway.admin + "/ready", trust_env=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def ready(gateway: Fleet) -> list[str]:
    return [row["id"] for row in gateway.workers() if row["state"] == "ready"]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("processes")
    with standalone(folder / "redis") as redis, site(folder / "site", redis.url) as here:
        yield front_of(here, redis)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Front]:
    """One for a test that ends it."""
    with standalone(tmp_path / "redis") as redis, site(tmp_path / "site", redis.url) as here:
        yield front_of(here, redis, processes=2, engines=1)


class Clients:
    """Connections that stay: by their balance each process has some of them."""

    def __init__(self, url: str, count: int) -> None:
        self._stack = ExitStack()
        self.url = url
        self.each = [
            self._stack.enter_context(httpx.Client(trust_env=False, timeout=60)) for _ in range(count)
        ]

    def __enter__(self) -> Clients:
        for client in self.each:
            assert client.get(self.url + "/health").status_code == 200
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, turn: int, prompt: list[int], **fields: Any) -> httpx.Response:
        body = {"model": "sim", "prompt": prompt, "max_tokens": 2, **fields}
        return self.each[turn % len(self.each)].post(self.url + "/v1/completions", json=body)


def settle(front: Front) -> None:
    """Until every process's index says the same as Redis: nothing is on its way."""

    def settled() -> bool:
        verdict = httpx.post(front.gateway.admin + "/admin/index/shared/verify", trust_env=False, timeout=30)
        return bool(verdict.raise_for_status().json()["clean"])

    wait_until(settled, 60, "an index that is clean in every process")


def test_any_process_promises_what_the_engine_delivers(front: Front) -> None:
    before = front.gateway.metric("gateway_requests_total", code="200")
    prompts = conversation(1, 18)
    with Clients(front.gateway.url, 6) as clients:
        wait_until(
            lambda: min(row["connections"] for row in front.processes()) >= 1, 30, "a connection at each"
        )
        for turn, prompt in enumerate(prompts):
            answer = clients.ask(turn, prompt)
            assert answer.status_code == 200
            assert promised(answer) == cached(answer), f"prompt {turn}"
            settle(front)
    wait_until(
        lambda: front.gateway.metric("gateway_requests_total", code="200") == before + 18, 30, "every request"
    )
    by_process = Counter(
        line.split('"process": ')[1].split(",")[0] for line in front.logged("/v1/completions ok 200")
    )
    assert len(by_process) >= 2
    assert sum(by_process.values()) == before + 18


def test_counters_of_all_are_summed_and_gauges_go_by_their_rule(front: Front) -> None:
    admin = front.gateway
    tokens, count = admin.metric("gateway_prompt_tokens_total"), admin.metric("gateway_request_seconds_count")
    with Clients(admin.url, 6) as clients:
        for turn in range(12):
            assert clients.ask(turn, [turn + 3] * 50).status_code == 200
    wait_until(lambda: admin.metric("gateway_request_seconds_count") == count + 12, 30, "all twelve")
    assert admin.metric("gateway_prompt_tokens_total") == tokens + 12 * 50
    for engine in front.engines:
        # on a busy machine a duty goes from one process to the next meanwhile
        wait_until(
            lambda url=engine.url: admin.metric("gateway_index_writer", worker=url) == 1, 30, "one writer"
        )
        assert admin.metric("gateway_worker_state", worker=engine.url, state="ready") == 1
    assert admin.metric("gateway_index_limit_blocks") == 4_000_000
    assert admin.metric("gateway_peers") == N - 1
    assert admin.metric("gateway_processes") == admin.metric("gateway_processes_ready") == N
    # the load of one process is its siblings' peer load, and nobody's outside
    body = {"model": "sim", "prompt": [7] * 50, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", admin.url + "/v1/completions", json=body, trust_env=False, timeout=60):
        wait_until(lambda: admin.metric("gateway_inflight_requests") == 1, 30, "its load")
        wait_until(lambda: admin.metric("gateway_peer_inflight_requests") == 0, 30, "no load outside")
    wait_until(lambda: admin.metric("gateway_inflight_requests") == 0, 30, "none left")


def test_what_one_can_answer_for_all_is_asked_of_one(front: Front) -> None:
    with httpx.Client(base_url=front.gateway.admin, trust_env=False, timeout=60) as admin:
        why = admin.post("/admin/explain", json={"model": "sim", "prompt": [5] * 50}).json()
        assert {row["worker"] for row in why["workers"]} == {engine.url for engine in front.engines}
        assert "/admin/explain" in admin.get("/openapi.json").json()["paths"]
        assert "<html" in admin.get("/ui").text
        with admin.stream("GET", "/ui/live") as page:
            assert next(page.iter_text()).startswith("event: state\ndata: {")
        # the doctor looks at each process as at a replica
        examined = admin.post("/admin/doctor", params={"window": 1.0})
        assert examined.status_code == 200, examined.text
        assert "findings" in examined.json()
        # and the port is guarded as that of one process
        assert admin.get("/admin/processes", headers={"host": "elsewhere:80"}).status_code == 403
        unknown = admin.get("/admin/nothing")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")


def test_openmetrics_is_what_a_strict_parser_takes(front: Front) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    headers = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = httpx.get(front.gateway.admin + "/metrics", headers=headers, trust_env=False, timeout=30)
    families = [family.name for family in text_string_to_metric_families(answer.text)]
    assert len(families) == len(set(families))
    assert {"gateway_requests", "gateway_ready", "process_cpu_seconds"} <= set(families)


def of_each(front: Front, path: str) -> list[Any]:
    """What each process says, asked at its own socket."""
    (folder,) = {
        Path(connection.laddr).parent
        for process in psutil.Process(front.gateway.process.pid).children()
        for connection in process.net_connections("unix")
        if "/pgw-" in str(connection.laddr)
    }
    said = []
    for path_of_one in sorted(folder.iterdir()):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path_of_one))) as http:
            said.append(http.get("http://process" + path, timeout=30).json())
    assert len(said) == front.count
    return said


def test_what_admin_changes_changes_in_every_process_and_in_those_that_come_later(front: Front) -> None:
    one, two = (engine.url for engine in front.engines)
    admin = httpx.Client(base_url=front.gateway.admin, trust_env=False, timeout=60)

    def states() -> list[dict[str, str]]:
        return [{w["id"]: w["state"] for w in each["workers"]} for each in of_each(front, "/admin/workers")]

    assert admin.post("/admin/workers/drain", json={"id": one}).json() == {"id": one}
    assert states() == [{one: "draining", two: "ready"}] * N
    assert admin.put("/admin/policy", json={"policy": "round_robin", "model": "sim"}).status_code == 200
    assert admin.delete("/admin/policy", params={"model": "nobody"}).status_code == 404
    policies = {"*": "estimated_ttft", "sim": "round_robin"}
    assert of_each(front, "/admin/policy") == [policies] * N

    # one that starts anew hears of it before it takes a request
    victim = front.pids()[1]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: front.pids().get(1, victim) != victim, 110, "a new process")
    front.wait()
    assert states() == [{one: "draining", two: "ready"}] * N
    assert of_each(front, "/admin/policy") == [policies] * N

    assert admin.post("/admin/workers/resume", json={"id": one}).status_code == 200
    assert states() == [{one: "ready", two: "ready"}] * N
    assert admin.delete("/admin/policy", params={"model": "sim"}).json() == {"*": "estimated_ttft"}
    assert of_each(front, "/admin/policy") == [{"*": "estimated_ttft"}] * N
    assert admin.delete("/admin/workers", params={"id": one}).status_code == 200
    assert states() == [{two: "ready"}] * N
    assert admin.post("/admin/workers", json={"url": "ftp://x"}).status_code == 400
    url, *rest = front.engines[0].spec.split(",")
    added = {"url": url, **dict(part.split("=", 1) for part in rest)}
    assert admin.post("/admin/workers", json=added).status_code == 201
    wait_until(lambda: states() == [{two: "ready", one: "ready"}] * N, 60, "the added worker everywhere")
    assert admin.post("/admin/index/verify").json() == {"status": "sound"}
    admin.close()


class Stream(threading.Thread):
    """Reads an answer that does not end by itself."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.pieces = 0
        self.broken = False
        self.halt = threading.Event()

    def run(self) -> None:
        body = {"model": "sim", "prompt": [5] * 50, "max_tokens": 20_000, "stream": True, "ignore_eos": True}
        with httpx.stream(
            "POST", self._url + "/v1/completions", json=body, trust_env=False, timeout=60
        ) as answer:
            assert answer.status_code == 200
            try:
                for _ in answer.iter_raw():
                    self.pieces += 1
                    if self.halt.is_set():
                        return
            except httpx.TransportError:
                self.broken = True


def test_a_killed_process_is_started_again_and_no_other_is_disturbed(front: Front) -> None:
    admin = front.gateway
    before = front.pids()
    crashes = admin.metric("gateway_process_crashes_total")
    wait_until(lambda: sum(row["connections"] for row in front.processes()) == 0, 30, "nobody else")
    streams = [Stream(admin.url) for _ in range(6)]
    for stream in streams:
        stream.start()
    try:
        wait_until(lambda: all(stream.pieces for stream in streams), 30, "six streams")
        wait_until(lambda: sum(row["connections"] for row in front.processes()) == 6, 30, "their count")
        doomed = next(row["connections"] for row in front.processes() if row["number"] == 0)
        assert 1 <= doomed <= 4
        requests = admin.metric("gateway_requests_total")
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: sum(stream.broken for stream in streams) == doomed, 30, "its streams' end")
        wait_until(lambda: admin.metric("gateway_process_crashes_total") == crashes + 1, 30, "the notice")
        going_on = [(stream, stream.pieces) for stream in streams if not stream.broken]
        wait_until(
            lambda: all(stream.pieces > then + 50 for stream, then in going_on), 30, "the others' goings"
        )
        front.wait()
        assert sum(stream.broken for stream in streams) == doomed
    finally:
        for stream in streams:
            stream.halt.set()
        for stream in streams:
            stream.join()
    after = front.pids()
    assert after[0] != before[0]
    assert {number: after[number] for number in (1, 2)} == {number: before[number] for number in (1, 2)}
    # what the killed one had counted is not lost: a sum that falls would read as a restart of all
    wait_until(lambda: admin.metric("gateway_requests_total") == requests + 6 - doomed, 30, "the sum")


def writers(front: Front) -> dict[str, str]:
    """Which process's life holds each worker's lease; empty where one is free."""
    keys = Keys("pgw")
    with front.redis.client() as client:
        held = {e.url: client.get(keys.lease(WorkerId(e.url))) for e in front.engines}
    return {url: owner.decode() for url, owner in held.items() if owner is not None}


def test_a_killed_process_is_succeeded_as_writer_and_the_next_one_gets_its_share(tmp_path: Path) -> None:
    """Each process is a replica of its own: of four workers two processes write two each, then and now."""
    with standalone(tmp_path / "redis") as redis, site(tmp_path / "site", redis.url) as here:
        front = front_of(here, redis, processes=2, engines=4)

        def even() -> bool:
            return sorted(Counter(writers(front).values()).values()) == [2, 2]

        wait_until(even, 60, "two and two")
        for turn, engine in enumerate(front.engines):
            body = {"model": "sim", "prompt": [turn] * 200, "max_tokens": 1}
            httpx.post(engine.url + "/v1/completions", json=body, trust_env=False, timeout=60)
        settle(front)
        before = set(writers(front).values())
        doomed = front.pids()[0]
        os.kill(doomed, signal.SIGKILL)
        wait_until(lambda: front.pids().get(0, doomed) != doomed, 30, "another in its place")
        front.wait()

        # the dead one's leases run out later where its successor was quick: its name goes, the other's stays
        def replaced() -> bool:
            return even() and len(before & set(writers(front).values())) == 1

        wait_until(replaced, 60, "two and two again")
        settle(front)
        wait_until(lambda: front.gateway.metric("gateway_index_writer") == 4, 30, "one writer a worker")


def test_all_are_replaced_under_load_and_no_request_fails(front: Front) -> None:
    admin = front.gateway
    assert admin.metric("gateway_queue_limit_requests") == N * 256
    front.config.write_text("queue_size: 30\n")  # what a reload can't take up, a successor does
    before = front.pids()
    requests = admin.metric("gateway_requests_total")
    halt = threading.Event()
    answers: list[list[int]] = [[] for _ in range(4)]
    failed: list[str] = []

    def send(number: int) -> None:
        with httpx.Client(trust_env=False, timeout=60) as http:
            turn = 0
            while not halt.is_set():
                turn += 1
                stream = turn % 3 == 0
                prompt = [100 + (number * 200 + turn) % 800] * 20
                body = {"model": "sim", "prompt": prompt, "max_tokens": 40 if stream else 2, "stream": stream}
                try:
                    answer = http.post(admin.url + "/v1/completions", json=body)
                except httpx.TransportError as error:
                    failed.append(repr(error))
                    continue
                answers[number].append(answer.status_code)
                if stream and not answer.content.endswith(b"data: [DONE]\n\n"):
                    failed.append("a stream without its end")
                halt.wait(0.01)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        admin.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: bool(front.logged("all processes were replaced")), 200, "their replacement")
        front.wait()
    finally:
        halt.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert {status for statuses in answers for status in statuses} == {200}
    after = front.pids()
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    assert admin.metric("gateway_queue_limit_requests") == N * 30
    # each request is counted, also those of the processes that are gone
    total = sum(map(len, answers))
    wait_until(lambda: admin.metric("gateway_requests_total") == requests + total, 30, "the sum")


def test_settings_are_read_anew_in_every_process(front: Front) -> None:
    admin, config = front.gateway, front.config
    bound = admin.metric("gateway_queue_limit_requests")

    def tell(number: int, message: str) -> None:
        """A signal, and what the log has to say to it."""
        before = len(front.logged(message))
        admin.process.send_signal(number)
        wait_until(lambda: len(front.logged(message)) > before, 200, message)

    config.write_text("policy: round_robin\nqueue_size: 20\n")
    tell(signal.SIGHUP, "settings reloaded")
    assert of_each(front, "/admin/policy") == [{"*": "round_robin"}] * N
    assert admin.metric("gateway_queue_limit_requests") == bound  # waits for a restart

    config.write_text("policy: nonsense\n")
    tell(signal.SIGHUP, "the settings were not reloaded: the old ones stay")
    assert of_each(front, "/admin/policy") == [{"*": "round_robin"}] * N
    # a successor that can't begin replaces nobody
    before = front.pids()
    tell(signal.SIGUSR2, "a successor does not come to serve; the process that it was to replace stays")
    front.wait()
    assert front.pids() == before

    config.write_text("{}")
    tell(signal.SIGHUP, "settings reloaded")
    assert of_each(front, "/admin/policy") == [{"*": "estimated_ttft"}] * N


def test_sigterm_drains_all_and_ends_with_0(own: Front) -> None:
    pids = list(own.pids().values())
    body = {"model": "sim", "prompt": [5] * 50, "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with ExitStack() as stack:
        answers = [
            stack.enter_context(
                httpx.stream(
                    "POST", own.gateway.url + "/v1/completions", json=body, trust_env=False, timeout=60
                )
            )
            for _ in range(6)
        ]
        own.gateway.process.send_signal(signal.SIGTERM)
        assert [answer.read().endswith(b"data: [DONE]\n\n") for answer in answers] == [True] * 6
    assert own.gateway.process.wait(60) == 0
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert "Traceback" not in own.gateway.log.read_text()


def test_processes_end_with_a_killed_supervisor(own: Front) -> None:
    children = psutil.Process(own.gateway.process.pid).children()
    assert len(children) == 2
    own.site.kill(own.gateway.process)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    with socket.socket() as again:  # and the port is free for the next
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(own.gateway.url.rsplit(":", 1)[1])))
        again.listen()


def test_without_redis_it_says_why_not() -> None:
    done = run("serve", "--processes", "3", "--worker", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "3 processes need redis_url" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_process_refuses_ends_all_with_its_reason(tmp_path: Path) -> None:
    with standalone(tmp_path, password="right") as server:
        url = f"redis://:wrong-one@127.0.0.1:{server.port}"
        done = run("serve", "--processes", "2", "--port", "0", "--worker", "http://127.0.0.1:1",
                   "--redis-url", url, timeout=110)  # fmt: skip
    assert done.returncode == 2
    assert "refuses us" in done.stderr
    assert "wrong-one" not in done.stderr + done.stdout
