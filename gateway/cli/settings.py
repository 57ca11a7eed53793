"""`prefix-gateway settings`: every setting there is, as docs/configuration.md has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from gateway.cli.options import settings_options
from gateway.cli.output import tables
from gateway.reload import LIVE
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    flag: str
    """Empty where it has none: by file or environment alone."""
    default: str
    meaning: str
    live: bool
    """A reload takes it up."""


@click.command("settings")
@click.option("--markdown", is_flag=True, help="As the table of docs/configuration.md.")
def command(markdown: bool) -> None:
    """List every setting. A file (`--config`) calls it by its name, the environment GATEWAY_ and its name in
    capitals."""
    if markdown:
        click.echo(as_markdown(), nl=False)
        return
    table = Table("setting", "flag", "default", "meaning", "reload")
    for row in rows():
        table.add_row(row.name, row.flag, row.default, row.meaning, "live" if row.live else "")
    tables(200).print(table)


def as_markdown() -> str:
    lines = ["| setting | flag | default | meaning | reload |", "|---|---|---|---|---|"]
    for row in rows():
        cells = (f"`{row.name}`", f"`{row.flag}`" if row.flag else "", row.default, row.meaning)
        live = "live" if row.live else ""
        lines.append("| " + " | ".join((*(cell.replace("|", "\\|") for cell in cells), live)) + " |")
    return "\n".join(lines) + "\n"


def rows() -> Iterator[Row]:
    flags = {option.name: option.opts[0] for option in _options()}
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        yield Row(name, flags.get(name, ""), _shown(default), field.description or "", name in LIVE)


def _options() -> list[click.Option]:
    """The flags of `serve`, as click knows them."""

    @click.command()
    @settings_options
    def serve(**given: Any) -> None: ...

    return [parameter for parameter in serve.params if isinstance(parameter, click.Option)]


def _shown(value: object) -> str:
    if value is None or value in ("", (), {}):
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value.as_posix() if isinstance(value, Path) else value)
