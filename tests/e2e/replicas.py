"""Several gateways, engines and agents around one Redis: each a process of its own, to be killed at will."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.conftest import ROOT, Fleet, wait_until
from tests.servers import free_tcp_port

START_S = 110.0


@dataclass
class Engine:
    """A reference worker, on the same ports in each of its lives."""

    process: subprocess.Popen[bytes]
    port: int
    events_port: int
    model: str
    repeats: bool = True
    """Its replay endpoint is known; a successor does not learn without what it did not hear."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spec(self) -> str:
        events, replay = self.events_port, self.events_port + 1
        spec = f"{self.url},events=tcp://127.0.0.1:{events}"
        return f"{spec},replay=tcp://127.0.0.1:{replay}" if self.repeats else spec

    def argv(self) -> list[str]:
        return [
            sys.executable, "-m", "workers", "serve", "--model", self.model, "--served-model-name", "sim",
            "--port", str(self.port), "--kv-events-port", str(self.events_port),
        ]  # fmt: skip

    def up(self) -> bool:
        return answers(self.url + "/health")


class Site:
    """All processes of one test; those still running are ended with it."""

    def __init__(self, folder: Path, redis_url: str | None) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, argv: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self.processes):02d}-{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def engine(self, model: str = "sim:fast") -> Engine:
        """Starts one; see `wait` for when it answers."""
        engine = Engine(None, free_tcp_port(), free_tcp_port(), model)  # type: ignore[arg-type]
        self.restart(engine)
        return engine

    def restart(self, engine: Engine) -> None:
        engine.process = self.start(engine.argv(), f"engine-{engine.port}")

    def agent(self, *args: str, engine: Engine | None = None) -> subprocess.Popen[bytes]:
        assert self.redis_url is not None
        argv = [sys.executable, "-m", "gateway", "agent", "--redis-url", self.redis_url]
        argv += ["--engine", engine.spec] if engine is not None else []
        return self.start([*argv, *args], "agent")

    def gateway(
        self,
        *args: str,
        engines: Sequence[Engine] = (),
        redis_url: str | None = None,
        at: Fleet | None = None,
    ) -> Fleet:
        """One replica, in front of `engines` and whatever its arguments say; `at` where one has ended."""
        port, admin = (free_tcp_port(), free_tcp_port()) if at is None else (_port(at.url), _port(at.admin))
        argv = [sys.executable, "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin)]
        for engine in engines:
            argv += ["--worker", engine.spec]
        url = redis_url or self.redis_url
        argv += ["--redis-url", url] if url is not None else []
        process = self.start([*argv, *args], f"gateway-{port}")
        log = self.folder / f"{len(self.processes) - 1:02d}-gateway-{port}.log"
        folder = self.folder
        return Fleet(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", folder, log)

    def wait(self, *parts: Fleet | Engine, workers: int | None = None) -> None:
        """Until all answer, and each gateway has so many ready workers."""
        for part in parts:
            if isinstance(part, Engine):
                wait_until(part.up, START_S, f"engine on {part.port}")
            else:
                count = 1 if workers is None else workers
                wait_until(lambda: ready_workers(part) >= count, START_S, f"{count} workers at {part.url}")  # noqa: B023

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9, and nothing of it is left when this returns."""
        process.kill()
        process.wait()

    def output(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
            for log in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()


@contextmanager
def site(folder: Path, redis_url: str | None) -> Iterator[Site]:
    folder.mkdir(parents=True, exist_ok=True)
    made = Site(folder, redis_url)
    try:
        yield made
    except AssertionError as error:
        raise AssertionError(f"{error}\n{made.output()}") from error
    finally:
        made.close()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def ready_workers(fleet: Fleet) -> int:
    """Workers that may get requests there; 0 while it does not answer."""
    try:
        return sum(worker["state"] == "ready" for worker in fleet.workers())
    except httpx.HTTPError:
        assert fleet.process.poll() is None, f"a gateway ended:\n{fleet.output()}"
        return 0


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
