"""A hundred workers behind one gateway, under traffic that reaches each, scraped by a real Prometheus."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.crowd import MODEL
from tests.e2e.prometheus import Prometheus, prometheus
from tests.e2e.replicas import site
from tests.servers import standalone

WORKERS = 100
WITH_EVENTS = 2


@contextlib.contextmanager
def hundred(folder: Path) -> Iterator[Prometheus]:
    with standalone(folder / "redis") as redis, site(folder / "site", redis.url) as here:
        noted = folder / "ports"
        here.start([sys.executable, "-m", "tests.e2e.crowd", str(WORKERS - WITH_EVENTS), str(noted)], "crowd")
        wait_until(noted.exists, 60, "the crowd")
        ports = noted.read_text().split()
        engines = [here.engine("sim:fast") for _ in range(WITH_EVENTS)]
        here.wait(*engines)
        flags = [word for port in ports for word in ("--worker", f"http://127.0.0.1:{port}")]
        config = folder / "gateway.yaml"
        # by turns, so that each has something to show: who gets what is not at stake here
        config.write_text("discovery: redis\npolicy: round_robin\nhealth_interval: 15\n")
        gateway = here.gateway("--config", str(config), *flags, engines=engines)
        here.wait(gateway, workers=WORKERS)
        jobs = {
            "prefix-gateway": [gateway.admin.removeprefix("http://")],
            "engines": [*(f"127.0.0.1:{port}" for port in ports), *(e.url[7:] for e in engines)],
        }
        with prometheus(folder / "prometheus", jobs, "4s") as made, traffic(gateway):
            wait_until(lambda: busy_workers(made) == WORKERS, 240, "requests at every worker")
            yield made


def busy_workers(watcher: Prometheus) -> int:
    rows = watcher.query("count (rate(gateway_requests_total{worker!=''}[1m]) > 0)")
    return int(float(rows[0]["value"][1])) if rows else 0


@contextlib.contextmanager
def traffic(gateway: Fleet, clients: int = 4) -> Iterator[None]:
    """Chats that grow, each over one of a few openings, and strangers: every worker gets some."""
    over = threading.Event()

    def client(number: int) -> None:
        draw = random.Random(number)
        chats = [[5 + opening] * 64 for opening in range(number, 40, clients)]
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not over.wait(0.01):
                chat = draw.choice(chats)
                if draw.random() < 0.4 or len(chat) > 400:
                    del chat[64:]
                chat += [draw.randrange(5, 400) for _ in range(32)]
                stranger = [draw.randrange(5, 400) for _ in range(200)]
                body = {
                    "model": MODEL, "prompt": draw.choice((chat, stranger)), "max_tokens": 4, "stream": True,
                }  # fmt: skip
                http.post(gateway.url + "/v1/completions", json=body)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
