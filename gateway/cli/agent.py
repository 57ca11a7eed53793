"""`prefix-gateway agent`: one engine's way into a fleet that finds its workers in Redis."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from gateway.agent.attendant import Pace
from gateway.agent.run import AgentOptions, run_agent
from gateway.cli.logs import configure
from gateway.fleet.spec import parse_worker
from gateway.store.connection import DEFAULT_PREFIX


@click.command("agent", context_settings={"ignore_unknown_options": True})
@click.option("--redis-url", required=True, envvar="GATEWAY_REDIS_URL", help="Where the fleet meets.")
@click.option(
    "--redis-password", envvar="GATEWAY_REDIS_PASSWORD", metavar="PASSWORD",
    help="In place of one in the URL. Better in GATEWAY_REDIS_PASSWORD: everybody sees a command line.",
)  # fmt: skip
@click.option("--redis-prefix", default=DEFAULT_PREFIX, envvar="GATEWAY_REDIS_PREFIX", show_default=True)
@click.option(
    "--redis-wait", is_flag=True, envvar="GATEWAY_REDIS_WAIT",
    help="Go on, and try on, where Redis refuses the password, is not trusted or would evict.  [exit]",
)  # fmt: skip
@click.option(
    "--engine", metavar="URL[,events=…][,…]",
    help="An engine that runs already; keys as of `serve --worker`.",
)  # fmt: skip
@click.option(
    "--data-parallel-size", "ranks", default=1, show_default=True, type=click.IntRange(1, 1024),
    help="Ranks of the engine that --engine names; its ports are the first rank's.",
)  # fmt: skip
@click.option(
    "--advertise-host", metavar="HOST",
    help="Where gateways reach this machine.  [its address on the way to Redis]",
)  # fmt: skip
@click.option(
    "--worker-api-key-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    envvar="GATEWAY_WORKER_API_KEY_FILE", help="File with the key that the engine asks for, as of `serve`.",
)  # fmt: skip
@click.option("--drain-timeout", default=120.0, show_default=True, help="Longest drain, in seconds.")
@click.option("--stop-timeout", default=30.0, show_default=True, help="From SIGTERM to SIGKILL, in seconds.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    redis_url: str,
    redis_password: str | None,
    redis_prefix: str,
    redis_wait: bool,
    engine: str | None,
    ranks: int,
    advertise_host: str | None,
    worker_api_key_file: Path | None,
    drain_timeout: float,
    stop_timeout: float,
    log_level: str,
    command: tuple[str, ...],
) -> None:
    """Bring one engine into the fleet: register it, follow its KV events, drain it at SIGTERM.

    \b
    prefix-gateway agent --redis-url redis://10.0.0.1 --engine http://10.0.0.7:8000
    prefix-gateway agent --redis-url redis://10.0.0.1 -- vllm serve Qwen/Qwen2.5-7B-Instruct

    With a command the engine is started too, with the flags that the gateway needs added where they are
    missing, and ended after the drain; its exit code becomes the agent's.
    """
    configure(log_level, access=False)
    options = AgentOptions(
        redis_url=redis_url,
        engine=parse_worker(engine) if engine is not None else None,
        ranks=ranks,
        command=command,
        advertise_host=advertise_host,
        redis_prefix=redis_prefix,
        redis_wait=redis_wait,
        redis_password=redis_password,
        worker_api_key_file=worker_api_key_file,
        stop_timeout=stop_timeout,
        pace=Pace(drain=drain_timeout),
    )
    sys.exit(asyncio.run(run_agent(options)))
