"""`prefix-gateway explain`: where would this request go, and why?"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import click
import httpx
from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError, UpstreamConnectError


@click.command("explain")
@click.argument("body", type=click.File("r"), default="-")
@click.option("--admin-url", default="http://127.0.0.1:8081", show_default=True, envvar="GATEWAY_ADMIN_URL")
@click.option("--admin-token", envvar="GATEWAY_ADMIN_TOKEN", help="Where the admin port asks for one.")
@click.option("--path", default=None, help="API path of the request.  [told from the body]")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def command(body: TextIO, admin_url: str, admin_token: str | None, path: str | None, as_json: bool) -> None:
    """Say where a request would go without sending it. BODY is a file with an OpenAI request body, or stdin.

    \b
    echo '{"model": "…", "messages": [{"role": "user", "content": "Hello"}]}' | prefix-gateway explain
    """
    answer = _ask(admin_url, admin_token, body.read(), path)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    _show(answer)


def _ask(admin_url: str, token: str | None, text: str, path: str | None) -> dict[str, Any]:
    params = {} if path is None else {"path": path}
    headers = {"content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        answer = httpx.post(
            admin_url.rstrip("/") + "/admin/explain",
            content=text.encode(),
            params=params,
            headers=headers,
            timeout=30.0,
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


def _show(answer: dict[str, Any]) -> None:
    # piped output has no width of its own: a table must not be cut for want of one
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(
        f"model {answer['model']}   {answer['prompt_tokens']} prompt tokens, "
        f"{answer['blocks']} blocks that can be cached   tokenizer: {answer['tokenizer']}   "
        f"policy: {answer['policy']}"
    )
    if answer.get("not_tokenised"):
        console.print(f"not tokenised: {answer['not_tokenised']}", markup=False)
    tokens = ("matched", "uncached", "waiting", "decoding", "overflow", "excess")
    table = Table("worker", *tokens, "requests", "speed", "TTFT s", "score", "verdict")
    for row in answer["workers"]:
        score = row["score"]
        table.add_row(
            row["worker"],
            str(row["matched_tokens"]),
            str(row["uncached_tokens"]),
            str(row["waiting_tokens"]),
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
            "the formula: docs/architecture.md"
        )
