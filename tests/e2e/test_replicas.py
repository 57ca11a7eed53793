"""Two replicas in front of four workers, one knowledge between them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.replicas import Engine, Site, ready_workers, site
from tests.servers import Server, standalone

pytestmark = pytest.mark.timeout(300)


@dataclass
class Pair:
    """Two replicas and what is behind them."""

    site: Site
    redis: Server
    engines: list[Engine]
    replicas: list[Fleet]
    http: httpx.Client

    def ask(self, replica: int, prompt: list[int] | str, **fields: Any) -> httpx.Response:
        body = {"model": "sim", "prompt": prompt, "max_tokens": 2, **fields}
        return self.http.post(self.replicas[replica].url + "/v1/completions", json=body)

    def settle(self, quiet: float = 0.15) -> None:
        """Until neither replica has learned anything for `quiet` seconds."""
        last, since = self._known(), time.monotonic()
        deadline = since + 30
        while time.monotonic() - since < quiet:
            assert time.monotonic() < deadline, "the index did not settle"
            time.sleep(0.02)
            if (now := self._known()) != last:
                last, since = now, time.monotonic()

    def _known(self) -> list[object]:
        answers = [self.http.get(replica.admin + "/admin/workers").json() for replica in self.replicas]
        return [[(w["id"], w["indexed_blocks"], w["events"]) for w in a["workers"]] for a in answers]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with standalone(folder / "redis") as redis, site(folder / "site", redis.url) as here:
        # tokens from the engines, whatever else this machine does
        settings = folder / "gateway.yaml"
        settings.write_text("tokenizers: {sim: engine}\ntokenize_timeout: 30\n")
        engines = [here.engine("sim:50us-per-token,1ms-per-step") for _ in range(4)]
        replicas = [here.gateway("--config", str(settings), engines=engines) for _ in range(2)]
        here.wait(*replicas, workers=4)
        wait_until(lambda: all(r.metric("gateway_peers") == 1 for r in replicas), what="peers")
        with httpx.Client(trust_env=False, timeout=60) as http:
            yield Pair(here, redis, engines, replicas, http)


def promised(answer: httpx.Response) -> int:
    return int(answer.headers["x-gateway-matched-tokens"])


def cached(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def conversation(seed: int, turns: int) -> list[list[int]]:
    """Prompts of growing chats over a few shared roots, in an order that mixes them."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(100, 1000) for _ in range(count)]

    roots = [ids(rng.randrange(40, 200)) for _ in range(3)]
    chats = [list(rng.choice(roots)) for _ in range(5)]
    prompts = []
    for _ in range(turns):
        chat = rng.choice(chats)
        chat += ids(rng.randrange(3, 40))
        prompts.append(list(chat))
    return prompts


def test_what_either_replica_promises_is_what_the_engine_delivers(pair: Pair) -> None:
    hits = {}
    for salt, replicas in (("both", 2), ("one", 1)):
        total = found = 0
        for number, prompt in enumerate(conversation(1, 24)):
            answer = pair.ask(number % replicas, prompt, cache_salt=salt)
            assert answer.status_code == 200
            assert promised(answer) == cached(answer), f"prompt {number} through {replicas}"
            total, found = total + len(prompt), found + cached(answer)
            pair.settle()
        hits[salt] = found / total
    assert hits["both"] > 0.5
    assert hits["both"] == pytest.approx(hits["one"], abs=0.01)


@pytest.mark.parametrize("kind", ["ids", "text"])
def test_a_burst_of_siblings_over_both_is_prefilled_on_two_workers_at_most(pair: Pair, kind: str) -> None:
    """A text's tokens come from the engines' /tokenize."""
    rng = random.Random(2)
    if kind == "ids":
        prompt: list[int] | str = [rng.randrange(100, 1000) for _ in range(4000)]  # 0.2 s of prefill
    else:
        prompt = " ".join(str(rng.randrange(100, 1000)) for _ in range(1000))
    begin = threading.Barrier(16)

    def send(number: int) -> list[str]:
        begin.wait()
        answers = [pair.ask((number + n) % 2, prompt) for n in range(4)]
        assert {a.status_code for a in answers} == {200}
        return [a.headers["x-gateway-worker"] for a in answers]

    with ThreadPoolExecutor(16) as pool:
        workers = [worker for sent in pool.map(send, range(16)) for worker in sent]
    assert len(workers) == 64
    assert len(set(workers)) <= 2
    for replica in pair.replicas:
        assert replica.metric("gateway_untokenized_requests_total") == 0


def test_load_here_is_seen_there_and_nothing_is_left(pair: Pair) -> None:
    one, two = pair.replicas
    body = {"model": "sim", "prompt": [7] * 200, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", one.url + "/v1/completions", json=body, trust_env=False, timeout=60) as answer:
        worker = answer.headers["x-gateway-worker"]
        wait_until(
            lambda: two.metric("gateway_peer_inflight_requests", worker=worker) == 1, what="the peer's load"
        )
        assert one.metric("gateway_inflight_requests", worker=worker) == 1
    for replica in pair.replicas:
        wait_until(lambda: replica.metric("gateway_peer_inflight_requests") == 0, what="none left")  # noqa: B023
        assert replica.metric("gateway_inflight_requests") == 0


def test_a_killed_replica_takes_its_load_with_it(pair: Pair) -> None:
    one, _ = pair.replicas
    doomed = pair.site.gateway(engines=pair.engines)
    pair.site.wait(doomed, workers=4)
    wait_until(lambda: one.metric("gateway_peers") == 2, what="the third")
    body = {"model": "sim", "prompt": [9] * 200, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", doomed.url + "/v1/completions", json=body, trust_env=False, timeout=60):
        wait_until(lambda: one.metric("gateway_peer_inflight_requests") == 1, what="its load")
        pair.site.kill(doomed.process)
    wait_until(lambda: one.metric("gateway_peer_inflight_requests") == 0, 10, "its load gone")
    assert one.metric("gateway_peers") == 1


def test_the_doctor_finds_two_replicas_well(pair: Pair) -> None:
    """Each mirrors what the other one follows: that is how it should be."""
    pair.settle()
    states = set()
    for replica in pair.replicas:
        workers = pair.http.get(replica.admin + "/admin/workers").json()["workers"]
        states |= {(w["events"]["state"], w["events"]["mirror"]) for w in workers}
        found = pair.http.post(replica.admin + "/admin/doctor", params={"window": 1}).json()["findings"]
        assert [f for f in found if f["id"] in ("events-silent", "events-off")] == []
    assert states == {("following", ""), ("mirroring", "following")}


def test_redis_killed_under_load_fails_no_request(pair: Pair) -> None:
    stop = threading.Event()

    def load(number: int) -> list[int]:
        codes, rng = [], random.Random(number)
        while not stop.is_set():
            prompt = [rng.randrange(100, 1000) for _ in range(64)]
            codes.append(pair.ask(number % 2, prompt).status_code)
        return codes

    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(load, number) for number in range(2)]
        try:
            pair.redis.kill()
            wait_until(lambda: all(r.metric("gateway_sharing_up") == 0 for r in pair.replicas), what="down")
            pair.redis.start()
            wait_until(lambda: all(r.metric("gateway_sharing_up") == 1 for r in pair.replicas), what="up")
        finally:
            stop.set()
        codes = [code for each in loads for code in each.result()]
    assert len(codes) > 10
    assert set(codes) == {200}
    wait_until(lambda: all(r.metric("gateway_peers") == 1 for r in pair.replicas), what="peers again")


def test_a_killed_worker_is_promised_no_more_and_comes_back_empty(pair: Pair) -> None:
    victim = pair.engines[0]
    prompt = [random.Random(5).randrange(100, 1000) for _ in range(320)]
    # fill all four alike, each under a salt that was sent there
    for salt in range(12):
        pair.ask(salt % 2, prompt, cache_salt=f"s{salt}")
    pair.settle()
    pair.site.kill(victim.process)
    for salt in range(12):
        answer = pair.ask(salt % 2, prompt, cache_salt=f"s{salt}")
        assert answer.status_code == 200
        assert answer.headers["x-gateway-worker"] != victim.url
        assert promised(answer) >= cached(answer) - 320
    pair.site.restart(victim)
    pair.site.wait(victim)
    pair.site.wait(*pair.replicas, workers=4)
    pair.settle()
    for salt in range(12):
        answer = pair.ask(salt % 2, prompt, cache_salt=f"s{salt}")
        assert answer.status_code == 200
        assert promised(answer) == cached(answer)
        pair.settle()
    assert all(ready_workers(replica) == 4 for replica in pair.replicas)
