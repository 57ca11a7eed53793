"""`prefix-gateway explain`: where would this request go, and why?"""

from __future__ import annotations

import json
from typing import Any, TextIO

import click
from rich.table import Table

from gateway.cli import admin
from gateway.cli.output import tables

_TIMEOUT = 30.0


@click.command("explain")
@click.argument("body", type=click.File("r"), default="-")
@admin.admin_url
@admin.admin_token
@click.option("--path", default=None, help="API path of the request.  [told from the body]")
@admin.as_json
def command(body: TextIO, admin_url: str, admin_token: str | None, path: str | None, as_json: bool) -> None:
    """Say where a request would go without sending it. BODY is a file with an OpenAI request body, or stdin.

    \b
    echo '{"model": "…", "messages": [{"role": "user", "content": "Hello"}]}' | prefix-gateway explain
    """
    answer = admin.ask(
        "POST",
        admin_url,
        "/admin/explain",
        admin_token,
        timeout=_TIMEOUT,
        content=body.read(),
        params={} if path is None else {"path": path},
    )
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    show(answer)


def show(answer: dict[str, Any]) -> None:
    """An explanation, as JSON has it."""
    console = tables(160)
    console.print(
        f"model {answer['model']}   {answer['prompt_tokens']} prompt tokens, "
        f"{answer['blocks']} blocks that can be cached   tokenizer: {answer['tokenizer']}   "
        f"policy: {answer['policy']}"
    )
    if answer.get("not_tokenised"):
        console.print(f"not tokenised: {answer['not_tokenised']}", markup=False)
    if answer.get("slices", 0) > 1:
        console.print(f"goes to its worker in {answer['slices']} pieces, the last of them the request itself")
    tokens = ("matched", "uncached", "waiting", "long wait", "decoding", "overflow", "excess")
    table = Table("worker", *tokens, "requests", "speed", "TTFT s", "score", "verdict")
    for row in answer["workers"]:
        score = row["score"]
        table.add_row(
            row["worker"],
            str(row["matched_tokens"]),
            str(row["uncached_tokens"]),
            _waiting(row),
            f"{row['long_wait']:.0f}",
            str(row["decoding_tokens"]),
            str(row["overflow_tokens"]),
            f"{row['excess_tokens']:.0f}",
            str(row["requests"]),
            f"{row['prefill_rate']:.2f}",
            "" if row["expected_ttft_s"] is None else f"{row['expected_ttft_s']:.2f}",
            "" if score is None else f"{score:.1f}",
            row["verdict"],
        )
    console.print(table)
    if answer["policy"] == "estimated_ttft":
        console.print(
            f"matched … excess in tokens; affinity of this prompt: {answer['affinity']:.2f}; "
            f"slack of the fleet: {answer['slack']:.2f}; the formula: docs/architecture.md"
        )


def _waiting(row: dict[str, Any]) -> str:
    """With what yields to whoever has his past there."""
    yielding = row.get("yielding_tokens", 0)
    return f"{row['waiting_tokens']}+{yielding}" if yielding else str(row["waiting_tokens"])
