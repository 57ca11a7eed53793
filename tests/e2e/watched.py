"""A fleet with everything a dashboard can show, under traffic of every kind, scraped by a real Prometheus."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.prometheus import Prometheus, prometheus
from tests.e2e.replicas import Engine, Site, site
from tests.servers import Server, standalone

MODEL = "sim"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SYSTEM = "You help customers of a shop for garden tools, politely and briefly, in complete sentences. " * 8
CLIENTS = 3
"""Of one shop: each has a system prompt of its own."""


@dataclass
class Watched:
    site: Site
    redis: Server
    engines: list[Engine]
    replicas: list[Fleet]
    prometheus: Prometheus
    traffic: Traffic


@dataclass(frozen=True)
class Kind:
    """How long what comes is."""

    system: int = 1
    """Times `SYSTEM` in front of a chat."""
    stranger: int = 200
    """Tokens of a prompt that shares nothing, or half of itself: the form of its shop, filled in anew."""


@dataclass
class Traffic:
    """Chats over one system prompt, streamed and whole, at every replica; strangers, forms, mistakes, and
    clients that leave."""

    replicas: list[Fleet]
    kind: Kind = field(default_factory=Kind)
    asked: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, clients: int = CLIENTS, first: int = 0) -> None:
        """`first` is the first one's number: others ask other questions, and of other shops."""
        self._threads = [
            threading.Thread(target=self._client, args=(i,), name=f"client {i}", daemon=True)
            for i in range(first, first + clients)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _client(self, number: int) -> None:
        draw = random.Random(number)
        turns: list[dict[str, str]] = []
        shop = number // CLIENTS
        system = (f"This is shop {shop}. " if shop else "") + SYSTEM * self.kind.system
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not self._stop.wait(0.05):
                url = draw.choice(self.replicas).url
                with contextlib.suppress(httpx.TransportError):  # a replica may be told to end
                    self._one(http, url, draw, system, turns)
                self.asked += 1

    def _one(
        self, http: httpx.Client, url: str, draw: random.Random, system: str, turns: list[dict[str, str]]
    ) -> None:
        dice = draw.random()
        if dice < 0.05:
            http.post(url + "/v1/chat/completions", json={"model": "unknown", "messages": []})
            return
        if dice < 0.15:
            self._completion(http, url, _tokens(draw, self.kind.stranger))
            return
        if dice < 0.25:
            half = self.kind.stranger // 2
            self._completion(http, url, _tokens(random.Random(system), half) + _tokens(draw, half))
            return
        if len(turns) > 8:
            turns.clear()
        turns.append({"role": "user", "content": f"Question {draw.randrange(1000)}: is rust a problem?"})
        body = {
            "model": MODEL,
            "messages": [{"role": "system", "content": system}, *turns],
            "max_tokens": 8,
            "stream": dice < 0.85,
            "ignore_eos": True,
        }
        parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        with http.stream("POST", url + "/v1/chat/completions", json=body, headers=parent) as answer:
            if dice < 0.3:
                return  # left before the first word
            answer.read()
        turns.append({"role": "assistant", "content": "A little oil now and then."})

    def _completion(self, http: httpx.Client, url: str, prompt: list[int]) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "stream": True}
        http.post(url + "/v1/completions", json=body)


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(5, 400) for _ in range(count)]


@contextmanager
def watched(
    folder: Path,
    model: str = "tiny",
    processes: Sequence[int] = (1, 1),
    gateway_args: Sequence[str] = (),
    kind: Kind | None = None,
) -> Iterator[Watched]:
    """`processes`: of each replica."""
    with standalone(folder / "redis") as redis, site(folder / "site", redis.url) as here:
        engines = [here.engine(model) for _ in range(2)]
        here.wait(*engines)
        several = [("--processes", str(n)) if n > 1 else () for n in processes]
        replicas = [
            here.gateway("--discovery", "redis", *gateway_args, *args, engines=engines) for args in several
        ]
        here.wait(*replicas, workers=2)
        others = sum(processes) - 1
        wait_until(lambda: all(r.metric("gateway_peers") == others for r in replicas), 60, "peers")
        jobs = {
            "prefix-gateway": [replica.admin.removeprefix("http://") for replica in replicas],
            "engines": [engine.url.removeprefix("http://") for engine in engines],
        }
        with prometheus(folder / "prometheus", jobs) as watcher:
            traffic = Traffic(replicas, kind or Kind())
            traffic.start()
            try:
                began = time.time()
                wait_until(lambda: traffic.asked > 60 and time.time() - began > 20, 120, "traffic")
                yield Watched(here, redis, engines, replicas, watcher, traffic)
            finally:
                traffic.stop()
