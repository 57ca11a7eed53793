"""The fleet behind every router: simulated engines, their counters, and a cold start between two routers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.children import running
from benchmarks.fleet import free_port
from benchmarks.live.plan import Plan
from benchmarks.live.processes import wait_until
from benchmarks.live.words import TOKENIZER

MODEL = "sim"
_HITS = "vllm:prefix_cache_hits_total"
_QUERIES = "vllm:prefix_cache_queries_total"


@dataclass(frozen=True, slots=True)
class Engine:
    port: int
    events_port: int
    replay_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def worker(self) -> str:
        """As our gateway is told of it."""
        return (
            f"{self.url},events=tcp://127.0.0.1:{self.events_port},replay=tcp://127.0.0.1:{self.replay_port}"
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """Tokens since the engine's start."""

    asked: float
    cached: float

    def since(self, before: Counters) -> Counters:
        return Counters(self.asked - before.asked, self.cached - before.cached)


class Fleet:
    def __init__(self, engines: list[Engine], client: httpx.Client) -> None:
        self.engines = engines
        self._client = client

    @property
    def ports(self) -> list[int]:
        return [engine.port for engine in self.engines]

    def counters(self) -> list[Counters]:
        return [self._counters(engine) for engine in self.engines]

    def _counters(self, engine: Engine) -> Counters:
        text = self._client.get(engine.url + "/metrics").raise_for_status().text
        sums = {_HITS: 0.0, _QUERIES: 0.0}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in sums:
                    sums[sample.name] += sample.value
        return Counters(asked=sums[_QUERIES], cached=sums[_HITS])

    def forget(self, timeout: float = 60.0) -> None:
        """Empties every engine's cache; waits for answers that are still being made."""
        deadline = time.monotonic() + timeout
        for engine in self.engines:
            while not self._client.post(engine.url + "/reset_prefix_cache").json()["success"]:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{engine.url} stayed busy for {timeout:.0f} s")
                time.sleep(0.1)


@contextmanager
def running_engines(plan: Plan, count: int, time_scale: float, scratch: Path) -> Iterator[Fleet]:
    engines = [Engine(free_port(), free_port(), free_port()) for _ in range(count)]
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=10.0, trust_env=False))
        started = []
        for engine in engines:
            log = scratch / f"engine-{engine.port}.log"
            started.append(
                (engine, stack.enter_context(running(_command(engine, plan, time_scale), log)), log)
            )
        for engine, process, log in started:
            wait_until(partial(_healthy, client, engine.url), process, log, timeout=60.0)
        yield Fleet(engines, client)


def _command(engine: Engine, plan: Plan, time_scale: float) -> list[str]:
    command = [sys.executable, "-m", "workers", "serve", "--model", f"sim:{plan.profile}"]
    command += ["--served-model-name", MODEL, "--tokenizer", str(TOKENIZER), "--port", str(engine.port)]
    command += ["--num-blocks", str(plan.blocks), "--time-scale", str(time_scale), "--exit-with-parent"]
    command += ["--kv-events-port", str(engine.events_port), "--kv-replay-port", str(engine.replay_port)]
    return command


def _healthy(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url + "/health").status_code == 200
    except httpx.TransportError:
        return False
