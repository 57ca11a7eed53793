"""`prefix-gateway up`: a whole small fleet with one command, workers included. `make run` calls this."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click
import httpx
from rich.console import Console

from gateway.api.listener import bind
from gateway.cli.child_workers import ChildWorker, child_workers
from gateway.cli.logs import configure
from gateway.cli.options import Given, settings_options
from gateway.cli.running import run
from gateway.errors import ConfigError
from gateway.settings import Settings

READY_S = 30.0
"""After so long the addresses are told all the same: a log says what is wrong."""


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
    read = Given(given)
    settings = read()
    _try_ports(settings)
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / f"gateway-{settings.port}.log"
    configure(settings.log_level, access=settings.access_log, path=log)
    signal.signal(signal.SIGTERM, _like_ctrl_c)  # until it serves: workers are there already
    with child_workers(
        count, model, worker_args, base_port=settings.port, run_dir=run_dir, console=console
    ) as workers:
        specs = tuple(f"{w.url},events={w.events},replay={w.replay}" for w in workers)
        code = run(
            settings.model_copy(update={"workers": specs}),
            on_ready=lambda url, admin: _announce(url, admin, workers, run_dir),
            read_settings=lambda: read().model_copy(update={"workers": specs}),
            log=log,
        )
    sys.exit(code)


def _like_ctrl_c(_number: int, frame: FrameType | None) -> None:
    """What Ctrl-C does is an event loop's to say where one runs: an exception is lost in its callbacks."""
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):  # ignored, as in a shell's background
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def _try_ports(settings: Settings) -> None:
    """Before a model is loaded and a log begun: `up` is often called where another one runs."""
    for host, port, flag in (
        (settings.host, settings.port, "--port (make run: PORT=…)"),
        (
            settings.admin_host,
            settings.resolved_admin_port,
            "--admin-port, or another --port (make run: PORT=…),",
        ),
    ):
        if port:
            bind(host, port, flag).close()


def _announce(url: str, admin: str, workers: Sequence[ChildWorker], run_dir: Path) -> None:
    """The ports listen; it is ready once it knows its workers' models. Asked from beside the loop."""

    def when_ready() -> None:
        give_up = time.monotonic() + READY_S
        while not _is_ready(url) and time.monotonic() < give_up:
            time.sleep(0.05)
        _banner(url, admin, workers, run_dir)

    threading.Thread(target=when_ready, name="banner", daemon=True).start()


def _is_ready(url: str) -> bool:
    try:
        # the certificate is this process's own, for whatever name
        return httpx.get(url + "/ready", trust_env=False, verify=False, timeout=2).is_success  # noqa: S501
    except httpx.HTTPError:
        return False


def _banner(url: str, admin: str, workers: Sequence[ChildWorker], run_dir: Path) -> None:
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

with the Anthropic client:

  from anthropic import Anthropic
  client = Anthropic(base_url="{url}", api_key="none")
  print(client.messages.create(model="{model}", max_tokens=60,
        messages=[{{"role": "user", "content": "Hello!"}}]).content[0].text)

why there? where would a request go, without sending it:

  echo '{{"model": "{model}", "messages": [{{"role": "user",
    "content": "Explain in two sentences why the sky is blue."}}]}}' |
    {_program()} explain --admin-url {admin}

live page {admin}/ui   metrics {admin}/metrics   workers {admin}/admin/workers
API docs {admin}/docs   logs in {run_dir}/
Ctrl-C ends everything.
"""
    )


def _program() -> str:
    """How this program was called: as a script of some environment, or as a module."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "prefix-gateway" else f"{sys.executable} -m gateway"


def _served_model(url: str) -> str:
    entries = httpx.get(url + "/v1/models", trust_env=False).raise_for_status().json()["data"]
    return str(entries[0]["id"])
