"""Fleets with an illness, traffic that brings it out, and the doctor who looks at them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.e2e.conftest import ROOT, Fleet, wait_until

WORDS = (ROOT / "LICENSE").read_text().split()
"""Of a text that nobody edits: how it is tokenised decides what some tests see."""


def text(seed: int, words: int) -> str:
    random = Random(seed)
    return " ".join(random.choice(WORDS) for _ in range(words))


def chat_body(*turns: str, system: str | None = None, max_tokens: int = 1, **fields: Any) -> dict[str, Any]:
    """User and assistant by turns. One token has no time between tokens: a busy machine can't look slow."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True, **fields}


def ask(fleet: Fleet, body: dict[str, Any]) -> httpx.Response:
    answer = httpx.post(
        fleet.url + "/v1/chat/completions", json=_named(fleet, body), trust_env=False, timeout=90
    )
    return answer.raise_for_status()


def _named(fleet: Fleet, body: dict[str, Any]) -> dict[str, Any]:
    return {"model": model_of(fleet), **body}


def model_of(fleet: Fleet) -> str:
    models = httpx.get(fleet.url + "/v1/models", trust_env=False, timeout=30).raise_for_status().json()
    return str(models["data"][0]["id"])


Examined = tuple[int, list[dict[str, Any]]]
"""Exit status, findings."""


def examine(
    *admin_urls: str, window: float = 1.5, interval: float = 0.1, args: Sequence[str] = ()
) -> Examined:
    """A run of the command, to its end."""
    command = [sys.executable, "-m", "gateway", "doctor", "--json", "--window", f"{window}s"]
    command += ["--interval", f"{interval}s", *args]
    for url in admin_urls:
        command += ["--admin-url", url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def examine_under(
    fleet: Fleet, bodies: Callable[[int], dict[str, Any]], *, clients: int, window: float = 3.0, **kwargs: Any
) -> Examined:
    """The same while `clients` keep asking. `bodies` makes the n-th request."""
    model = model_of(fleet)

    async def run() -> Examined:
        numbers = iter(range(10**9))
        stop = asyncio.Event()
        async with httpx.AsyncClient(
            trust_env=False, timeout=90, limits=httpx.Limits(max_connections=64)
        ) as client:

            async def keep_asking() -> None:
                while not stop.is_set():
                    body = {"model": model, **bodies(next(numbers))}
                    await client.post(fleet.url + "/v1/chat/completions", json=body)

            askers = [asyncio.create_task(keep_asking()) for _ in range(clients)]
            try:
                return await asyncio.to_thread(examine, fleet.admin, window=window, **kwargs)
            finally:
                stop.set()
                for asker in askers:
                    asker.cancel()
                await asyncio.gather(*askers, return_exceptions=True)

    return asyncio.run(run())


def ids(examined: Examined) -> set[str]:
    return {finding["id"] for finding in examined[1]}


def finding(examined: Examined, name: str) -> dict[str, Any]:
    found = [one for one in examined[1] if one["id"] == name]
    assert found, f"{name} is not among {sorted(ids(examined))}"
    return found[0]


def evidence(found: dict[str, Any], name: str) -> Any:
    return next(one["value"] for one in found["evidence"] if one["name"] == name)


@contextmanager
def gateway(run_dir: Path, workers: Sequence[str], port: Callable[[], int], *args: str) -> Iterator[Fleet]:
    """A gateway in front of engines that run already."""
    public, admin, log = port(), port(), run_dir / "gateway.out"
    run_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "gateway", "serve", "--port", str(public), "--admin-port", str(admin)]
    for worker in workers:
        command += ["--worker", worker]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *args], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
    fleet = Fleet(process, f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}", run_dir, log)

    def ready() -> bool:
        assert process.poll() is None, fleet.output()
        try:
            return httpx.get(fleet.url + "/ready", trust_env=False, timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(ready, 100, "a ready gateway")
        yield fleet
    finally:
        fleet.stop()


@dataclass(frozen=True)
class EngineSpec:
    """A reference engine to start; `events_at` is where the gateway is told to listen, if not there."""

    model: str
    args: Sequence[str] = ()
    events: bool = True
    events_at: int | None = None
    clock_ahead_s: float = 0.0
    options: str = ""
    """More of its worker line."""


_WITH_ANOTHER_CLOCK = (
    "import time; real = time.time; time.time = lambda: real() + {ahead}; "
    "from workers.__main__ import main; main()"
)


@contextmanager
def engines(folder: Path, specs: Sequence[EngineSpec], port: Callable[[], int]) -> Iterator[list[str]]:
    """Starts them all at once; gives their worker lines once all answer."""
    with engine_processes(folder, specs, port) as started:
        yield [line for line, _ in started]


@contextmanager
def engine_processes(
    folder: Path, specs: Sequence[EngineSpec], port: Callable[[], int]
) -> Iterator[list[tuple[str, subprocess.Popen[bytes]]]]:
    """The same, each line with its process, for who wants to kill one."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, spec in enumerate(specs):
            http_port, events_port, replay_port = port(), port(), port()
            launch = ["-m", "workers"]
            if spec.clock_ahead_s:
                launch = ["-c", _WITH_ANOTHER_CLOCK.format(ahead=spec.clock_ahead_s)]
            command = [sys.executable, *launch, "serve", "--served-model-name", spec.model]
            command += ["--port", str(http_port), "--exit-with-parent", *spec.args]
            if "--model" not in spec.args:
                command += ["--model", "sim:fast"]
            line = f"http://127.0.0.1:{http_port}{spec.options}"
            if spec.events:
                command += ["--kv-events-port", str(events_port), "--kv-replay-port", str(replay_port)]
                line += f",events=tcp://127.0.0.1:{spec.events_at or events_port}"
                line += f",replay=tcp://127.0.0.1:{replay_port}"
            with (folder / f"engine-{number}.log").open("wb") as out:
                running.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT
                    )
                )
            lines.append(line)
        for number, (line, process) in enumerate(zip(lines, running, strict=True)):
            _wait_for_engine(line.partition(",")[0], process, folder / f"engine-{number}.log")
        yield list(zip(lines, running, strict=True))
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def _wait_for_engine(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            return httpx.get(url + "/health", trust_env=False, timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, 100, f"an engine at {url}")


def of(examined: Examined, subject: str) -> set[str]:
    """Ids of the findings on one subject: a model, or the address a worker line begins with."""
    url = subject.partition(",")[0]
    return {one["id"] for one in examined[1] if one["subject"].partition("#")[0] == url}
