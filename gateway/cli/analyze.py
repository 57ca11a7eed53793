"""`prefix-gateway analyze`: what a log of requests says of prefixes, offline."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import click
import msgspec
from rich.table import Table

from gateway.cli.output import tables
from gateway.diagnosis.finding import percent
from gateway.diagnosis.offline import Analysis, analyse
from gateway.diagnosis.request_log import LoggedPrompt, read_log, records_of
from gateway.errors import ConfigError
from gateway.prompt.approx import BytesEncoder
from gateway.prompt.base import PromptEncoder
from gateway.prompt.resolve import choose_encoder


def _numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 1,2,4,8")
    return numbers


@click.command("analyze", context_settings={"show_default": True})
@click.argument("log", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--tokenizer", metavar="PATH", help="The model's tokenizer folder or GGUF file.  [bytes]")
@click.option("--workers", default="1,2,4,8,16", callback=_numbers, help="Fleets to compare.")
@click.option("--blocks-per-worker", type=click.IntRange(1), help="One worker's cache.  [never forgets]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    log: Path, tokenizer: str | None, workers: tuple[int, ...], blocks_per_worker: int | None, as_json: bool
) -> None:
    """Say what prefix caching can do for the requests in LOG, and where their prefixes break.

    LOG has one JSON object a line, or all in one array: a body of OpenAI's chat, completions or responses or
    of Anthropic's messages, one inside of `body` or `request`, or a trace line with `hash_ids`. It may be
    gzipped; - is stdin. Without a tokenizer, four bytes stand for a token. Nothing is stored and nothing
    leaves this machine.

    \b
    Exit status: 0 analysed, 2 LOG can't be read or holds no request.
    """
    encoder: PromptEncoder = BytesEncoder()
    if tokenizer is not None:
        encoder = choose_encoder(tokenizer_path=tokenizer).encoder
    prompts, unread = asyncio.run(_read(None if str(log) == "-" else log, encoder))
    if not prompts:
        raise ConfigError(f"{log}: no line is a request ({unread:,} read)")
    result = analyse(prompts, unread, workers=workers, blocks_each=blocks_per_worker)
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(result), "tokenizer": encoder.name}, indent=2))
    else:
        _show(result, encoder)


async def _read(log: Path | None, encoder: PromptEncoder) -> tuple[list[LoggedPrompt], int]:
    try:
        return await read_log(records_of(log), encoder, secrets.randbits(64))
    finally:
        await encoder.close()


def _show(result: Analysis, encoder: PromptEncoder) -> None:
    console = tables(110)
    about = "" if encoder.exact or not result.divergence.prompts else "about "
    distinct = "about " if result.distinct_estimated else ""
    prompts = "1 prompt" if result.prompts == 1 else f"{result.prompts:,} prompts"
    console.print(
        f"{prompts}, {about}{result.tokens:,} tokens, {result.blocks:,} blocks of "
        f"{result.block_size} that can be cached, {distinct}{result.distinct_blocks:,.0f} of them distinct"
    )
    if result.unread_lines:
        one = result.unread_lines == 1
        told = (
            "1 line is no request and was"
            if one
            else f"{result.unread_lines:,} lines are no requests and were"
        )
        console.print(f"{told} left out")
    console.print(f"achievable hit rate: {percent(result.achievable_hit_rate)} of blocks\n")
    sizes = Table("cache, blocks", "hit rate", title="one cache for all", title_justify="left")
    for size, rate in result.hit_rate_by_blocks:
        sizes.add_row(f"{size:,}", percent(rate))
    console.print(sizes)
    each = result.fleets[0].blocks_each if result.fleets else None
    title = "fleets whose workers " + (f"hold {each:,} blocks" if each else "never forget")
    fleets = Table("workers", "by prefix and load", "round robin", title=title, title_justify="left")
    for row in result.fleets:
        fleets.add_row(str(row.workers), percent(row.by_prefix), percent(row.round_robin))
    console.print(fleets)
    kinds = Table(
        "prompts", "tokens", "equal prefix", "equal anywhere", "diverges at block", "changes",
        title="kinds of prompts that lose their prefix", title_justify="left",
    )  # fmt: skip
    for kind in result.divergence.kinds[:10]:
        kinds.add_row(
            str(kind.prompts), f"{kind.tokens:.0f}", f"{kind.equal_prefix_tokens:.0f}",
            f"{kind.equal_text_tokens:.0f}", str(kind.diverges_at_block),
            "order" if kind.shuffled else f"{kind.changed_tokens:.0f} tokens",
        )  # fmt: skip
    if kinds.rows:
        console.print(kinds)
    for line in result.advice:
        console.print(f"→ {line}", markup=False)
