"""`prefix-gateway up`: a whole small fleet with one command, workers included. `make run` calls this."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx
from rich.console import Console

from gateway.cli.logs import configure
from gateway.cli.options import settings_from, settings_options
from gateway.errors import ConfigError
from gateway.serving import serve

START_SECONDS = 120.0


@click.command("up")
@click.option(
    "--workers", "count", type=click.IntRange(1, 64), default=2, show_default=True, help="How many."
)
@click.option(
    "--model", default="smollm2", show_default=True, help="smollm2, tiny, a path, or sim:<profile>."
)
@click.option(
    "--worker-arg", "worker_args", multiple=True, metavar="ARG", help="Passed to each worker; repeat."
)
@click.option("--run-dir", type=click.Path(path_type=Path), default=Path(".run"), show_default=True,
              help="Where the workers' logs go.")  # fmt: skip
@settings_options
def command(count: int, model: str, worker_args: tuple[str, ...], run_dir: Path, **given: Any) -> None:
    """Start reference workers and the gateway in front of them; Ctrl-C ends all.

    \b
    prefix-gateway up --workers 2 --model smollm2
    """
    if given.pop("workers", ()):
        raise ConfigError("`up` starts its own workers; `prefix-gateway serve --worker …` takes running ones")
    console = Console(stderr=True, highlight=False)
    settings = settings_from(dict(given))
    run_dir.mkdir(parents=True, exist_ok=True)
    configure(settings.log_level, access=settings.access_log, path=run_dir / "gateway.log")
    with _workers(count, model, worker_args, settings.port, run_dir, console) as workers:
        specs = tuple(f"{w.url},events={w.events},replay={w.replay}" for w in workers)
        serve(
            settings.model_copy(update={"workers": specs}),
            on_ready=lambda url, admin: _banner(url, admin, workers, run_dir),
            read_settings=lambda: settings_from(dict(given)).model_copy(update={"workers": specs}),
        )


@dataclass(frozen=True, slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    port: int
    events_port: int
    log: Path

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
def _workers(
    count: int, model: str, extra: Sequence[str], port: int, run_dir: Path, console: Console
) -> Iterator[list[_Worker]]:
    ports = _free_ports(port + 21 if port else 8101, count, step=1)
    events = _free_ports(port + 121 if port else 8201, count, step=2)
    threads = max(1, (os.cpu_count() or 1) // count)
    started: list[_Worker] = []
    try:
        for n, (http_port, events_port) in enumerate(zip(ports, events, strict=True), 1):
            log = run_dir / f"worker-{http_port}.log"
            command = [sys.executable, "-m", "workers", "serve", "--model", model, "--port", str(http_port)]
            command += ["--kv-events-port", str(events_port), "--threads", str(threads), "--exit-with-parent"]
            command += extra
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches the gateway alone, which ends them in order
                )
            started.append(_Worker(process, http_port, events_port, log))
            console.print(f"worker {n} of {count}: {model} on port {http_port}, log in {log}")
        _wait_all(started, console)
        yield started
    finally:
        _stop_all(started)


def _wait_all(workers: Sequence[_Worker], console: Console) -> None:
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
                    tail = "\n".join(worker.log.read_text(errors="replace").splitlines()[-15:])
                    raise ConfigError(f"a worker ended with code {worker.process.returncode}:\n{tail}")
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


def _stop_all(workers: Sequence[_Worker]) -> None:
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
            raise ConfigError(f"no free ports above {start}; --port takes a lower one")
        if all(_is_free(candidate + i) for i in range(step)):
            found.append(candidate)
        candidate += step
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _banner(url: str, admin: str, workers: Sequence[_Worker], run_dir: Path) -> None:
    model = _served_model(workers[0].url)
    click.echo(
        f"""
ready: {url}   model {model}, {len(workers)} workers: {", ".join(w.url for w in workers)}

ask something, twice; the second answer says how much of its prompt was in a worker's cache:

  curl -si {url}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "{model}", "max_tokens": 60,
    "messages": [{{"role": "user", "content": "Explain in two sentences why the sky is blue."}}]}}'

with the OpenAI client:

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  print(client.chat.completions.create(model="{model}", max_tokens=60,
        messages=[{{"role": "user", "content": "Hello!"}}]).choices[0].message.content)

metrics {admin}/metrics   workers {admin}/admin/workers   API docs {admin}/docs   logs {run_dir}/
Ctrl-C ends everything.
"""
    )


def _served_model(url: str) -> str:
    entries = httpx.get(url + "/v1/models", trust_env=False).raise_for_status().json()["data"]
    return str(entries[0]["id"])
