"""The reference workers that `up` starts: ports, logs, waiting, and starting again one that died."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console

from gateway.errors import ConfigError

START_SECONDS = 120.0
RESTARTS = 5
"""Of one worker; one that dies again and again is broken, and its log says how."""

Say = Callable[[str], None]


@dataclass(slots=True)
class ChildWorker:
    command: list[str]
    port: int
    events_port: int
    log: Path
    process: subprocess.Popen[bytes]
    restarts: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def events(self) -> str:
        return f"tcp://127.0.0.1:{self.events_port}"

    @property
    def replay(self) -> str:
        return f"tcp://127.0.0.1:{self.events_port + 1}"


@contextmanager
def child_workers(
    count: int, model: str, extra: Sequence[str], *, base_port: int, run_dir: Path, console: Console
) -> Iterator[list[ChildWorker]]:
    """`count` workers that answer; ended when left. Raises ConfigError with the last words of one that can't
    start. While inside, one that dies is started again on its port, and the console told."""
    ports = _free_ports(base_port + 21 if base_port else 8101, count, step=1)
    events = _free_ports(base_port + 121 if base_port else 8201, count, step=2)
    threads = max(1, (os.cpu_count() or 1) // count)
    started: list[ChildWorker] = []
    try:
        for n, (port, events_port) in enumerate(zip(ports, events, strict=True), 1):
            log = run_dir / f"worker-{port}.log"
            command = [sys.executable, "-m", "workers", "serve", "--model", model, "--port", str(port)]
            command += ["--kv-events-port", str(events_port), "--threads", str(threads)]
            command += ["--exit-with-parent", *extra]
            started.append(ChildWorker(command, port, events_port, log, _start(command, log, "wb")))
            console.print(f"worker {n} of {count}: {model} on port {port}, log in {log}")
        _wait_all(started, console)
        with _watched(started, console.print):
            yield started
    finally:
        _stop_all(started)


def is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
        return True


def _start(command: list[str], log: Path, mode: str) -> subprocess.Popen[bytes]:
    with log.open(mode) as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the gateway alone, which ends them in order
        )


@contextmanager
def _watched(workers: Sequence[ChildWorker], say: Say) -> Iterator[None]:
    """A dead worker's port must not stay free: another fleet could take it, and get this fleet's requests."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.25):
            for worker in workers:
                if worker.process.poll() is not None:
                    _restart(worker, say)

    thread = threading.Thread(target=watch, name="worker watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _restart(worker: ChildWorker, say: Say) -> None:
    if worker.restarts > RESTARTS:
        return
    how = f"worker {worker.port} ended ({_how(worker.process.returncode)}), log in {worker.log}"
    worker.restarts += 1
    if worker.restarts > RESTARTS:
        say(f"{how}; it was started again {RESTARTS} times, and stays down")
        return
    say(f"{how}; starting it again")
    worker.process = _start(worker.command, worker.log, "ab")


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _wait_all(workers: Sequence[ChildWorker], console: Console) -> None:
    began = time.monotonic()
    with (
        console.status("loading the model …") as status,
        httpx.Client(timeout=2.0, trust_env=False) as client,
    ):
        waiting = list(workers)
        while waiting:
            elapsed = time.monotonic() - began
            status.update(f"loading the model … {elapsed:.0f} s")
            for worker in list(waiting):
                if worker.process.poll() is not None:
                    raise ConfigError(_last_words(worker))
                try:
                    if client.get(worker.url + "/health").status_code == 200:
                        waiting.remove(worker)
                except httpx.TransportError:
                    pass
            if elapsed > START_SECONDS:
                raise ConfigError(
                    f"no answer from {waiting[0].url} after {elapsed:.0f} s; see {waiting[0].log}"
                )
            time.sleep(0.05)


def _last_words(worker: ChildWorker) -> str:
    lines = worker.log.read_text(errors="replace").splitlines()[-15:]
    if worker.process.returncode == 2 and lines:  # the worker's own one-line complaint
        return "\n".join(line.removeprefix("error: ").removeprefix("Error: ") for line in lines)
    return "\n".join([f"a worker ended ({_how(worker.process.returncode)}):", *lines])


def _stop_all(workers: Sequence[ChildWorker]) -> None:
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
    for worker in workers:
        try:
            worker.process.wait(10)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def _free_ports(start: int, count: int, *, step: int) -> list[int]:
    """`count` ports from `start` on, each with the step - 1 ports after it free as well."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if candidate + step > 65535:
            raise ConfigError(
                f"no {count} free ports for workers above {start}: they are taken from there, "
                "so give the gateway a lower one"
            )
        if all(is_free("127.0.0.1", candidate + i) for i in range(step)):
            found.append(candidate)
        candidate += step
    return found
