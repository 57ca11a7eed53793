"""Steady traffic over several replicas, as a load balancer spreads it, and what became of every request."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.e2e.conftest import Fleet


@dataclass(frozen=True)
class Sample:
    at: float
    """When it was sent; time.monotonic."""
    seconds: float
    status: int
    """0 where the connection broke in the middle: whoever answered it was killed."""
    replica: int
    worker: str = ""


@dataclass
class Traffic:
    """What was sent so far."""

    samples: list[Sample] = field(default_factory=list)
    halt: threading.Event = field(default_factory=threading.Event)
    """Set it to send no more."""


@contextmanager
def traffic(replicas: Sequence[Fleet], *, clients: int = 2, pause: float = 0.02) -> Iterator[Traffic]:
    """`clients` send one request after the other, to the replicas in turn; to the next where one does not
    accept connections."""
    made = Traffic()
    stop = made.halt

    def run(number: int) -> None:
        rng = random.Random(number)
        roots = [[rng.randrange(100, 1000) for _ in range(96)] for _ in range(4)]
        with httpx.Client(trust_env=False, timeout=60) as http:
            turn = number
            while not stop.is_set():
                turn += 1
                prompt = rng.choice(roots) + [rng.randrange(100, 1000) for _ in range(24)]
                made.samples.append(_send(http, replicas, turn, prompt))
                stop.wait(pause)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _send(http: httpx.Client, replicas: Sequence[Fleet], turn: int, prompt: list[int]) -> Sample:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 2}
    for attempt in range(len(replicas)):
        number = (turn + attempt) % len(replicas)
        began = time.monotonic()
        try:
            answer = http.post(replicas[number].url + "/v1/completions", json=body)
        except httpx.ConnectError:
            continue
        except httpx.TransportError:
            return Sample(began, time.monotonic() - began, 0, number)
        seconds = time.monotonic() - began
        if answer.status_code != 200:
            return Sample(began, seconds, answer.status_code, number)
        return Sample(began, seconds, 200, number, answer.headers["x-gateway-worker"])
    raise AssertionError("no replica accepts connections")
