"""`prefix-gateway index`: what a running gateway knows of its workers' caches, and whether it is true."""

from __future__ import annotations

import json
import sys

import click
from rich.table import Table

from gateway.cli import admin
from gateway.cli.output import tables

_TIMEOUT = 300.0
"""Verifying millions of blocks takes its time."""


@click.group("index")
def command() -> None:
    """The prefix index of a running gateway: figures, a check against Redis, and starting anew."""


@command.command("stats")
@admin.admin_url
@admin.admin_token
@admin.as_json
def stats(admin_url: str, admin_token: str | None, as_json: bool) -> None:
    """How large it is, how Redis is, and who writes and who mirrors each worker here."""
    answer = admin.ask("GET", admin_url, "/admin/index/shared", admin_token, timeout=_TIMEOUT)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    console, index, redis = tables(160), answer["index"], answer["redis"]
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
@admin.admin_url
@admin.admin_token
@admin.as_json
def verify(admin_url: str, admin_token: str | None, as_json: bool) -> None:
    """Set this gateway's index against Redis, block by block. Exits with 1 where they differ."""
    answer = admin.ask("POST", admin_url, "/admin/index/shared/verify", admin_token, timeout=_TIMEOUT)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        columns = ("worker", "state", "blocks", "missing", "extra", "miscounted", "books_differ")
        table = Table(*columns)
        for row in answer["workers"]:
            table.add_row(*(str(row[column]) for column in columns))
        console = tables(160)
        if answer["workers"]:
            console.print(table)
        console.print("clean" if answer["clean"] else "NOT clean")
    if not answer["clean"]:
        sys.exit(1)


@command.command("clear")
@click.option("--worker", required=True, help="As listed: its URL, with #dpN for a data-parallel rank.")
@admin.admin_url
@admin.admin_token
def clear(worker: str, admin_url: str, admin_token: str | None) -> None:
    """Forget all that is known of a worker, in every replica; it is learned anew from its events."""
    admin.ask("DELETE", admin_url, "/admin/index", admin_token, timeout=_TIMEOUT, params={"worker": worker})
    click.echo(f"cleared {worker}")
