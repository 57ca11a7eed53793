"""`prefix-gateway index`: what a running gateway knows of its workers' caches, and whether it is true."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import httpx
from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError, UpstreamConnectError

_TIMEOUT = 300.0
"""Verifying millions of blocks takes its time."""


@click.group("index")
def command() -> None:
    """The prefix index of a running gateway: figures, a check against Redis, and starting anew."""


_admin_url = click.option(
    "--admin-url", default="http://127.0.0.1:8081", show_default=True, envvar="GATEWAY_ADMIN_URL"
)
_admin_token = click.option(
    "--admin-token", envvar="GATEWAY_ADMIN_TOKEN", help="Where the admin port asks for one."
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")


@command.command("stats")
@_admin_url
@_admin_token
@_as_json
def stats(admin_url: str, admin_token: str | None, as_json: bool) -> None:
    """How large it is, how Redis is, and who writes and who mirrors each worker here."""
    answer = _ask("GET", admin_url, "/admin/index/shared", admin_token)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    console, index, redis = _console(), answer["index"], answer["redis"]
    console.print(
        f"{index['blocks']} blocks, {index['held_pairs']} held by workers, {index['placed_pairs']} promised, "
        f"{index['evictions']} given up at the cap"
    )
    if redis is None:
        console.print("no Redis: this gateway is alone")
        return
    state = "up" if redis["up"] else f"DOWN ({redis['reason']})"
    console.print(f"redis {redis['url']}: {state}, {redis['failures']} commands failed")
    table = Table("worker", "blocks", "role", "mirror", "epoch", "batch", "pending", "loads")
    for row in answer["workers"]:
        blocks = index["held"].get(row["worker"], 0)
        cells = (row["role"], row["mirror"], row["epoch"], row["number"], row["pending"], row["loads"])
        table.add_row(row["worker"], str(blocks), *map(str, cells))
    console.print(table)


@command.command("verify")
@_admin_url
@_admin_token
@_as_json
def verify(admin_url: str, admin_token: str | None, as_json: bool) -> None:
    """Set this gateway's index against Redis, block by block. Exits with 1 where they differ."""
    answer = _ask("POST", admin_url, "/admin/index/shared/verify", admin_token)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        columns = ("worker", "state", "blocks", "missing", "extra", "miscounted", "books_differ")
        table = Table(*columns)
        for row in answer["workers"]:
            table.add_row(*(str(row[column]) for column in columns))
        console = _console()
        if answer["workers"]:
            console.print(table)
        console.print("clean" if answer["clean"] else "NOT clean")
    if not answer["clean"]:
        sys.exit(1)


@command.command("clear")
@click.option("--worker", required=True, help="As listed: its URL, with #dpN for a data-parallel rank.")
@_admin_url
@_admin_token
def clear(worker: str, admin_url: str, admin_token: str | None) -> None:
    """Forget all that is known of a worker, in every replica; it is learned anew from its events."""
    _ask("DELETE", admin_url, "/admin/index", admin_token, worker=worker)
    click.echo(f"cleared {worker}")


def _ask(method: str, admin_url: str, path: str, key: str | None, **params: str) -> dict[str, Any]:
    try:
        answer = httpx.request(
            method,
            admin_url.rstrip("/") + path,
            params=params,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=_TIMEOUT,
            trust_env=False,
        )
    except httpx.TransportError as e:
        raise UpstreamConnectError(f"no gateway at {admin_url} ({e}); --admin-url takes another") from e
    if answer.status_code != 200:
        try:
            message = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = answer.text
        raise ConfigError(f"{answer.status_code}: {message}")
    result: dict[str, Any] = answer.json()
    return result


def _console() -> Console:
    # piped output has no width of its own: a table must not be cut for want of one
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 160)
