"""What commands that ask a running gateway have in common: where its admin port is, and how to ask it."""

from __future__ import annotations

from typing import Any

import click
import httpx

from gateway.errors import ConfigError, UpstreamConnectError
from gateway.logins import without_login

admin_url = click.option(
    "--admin-url", default="http://127.0.0.1:8081", show_default=True, envvar="GATEWAY_ADMIN_URL"
)
admin_token = click.option(
    "--admin-token", envvar="GATEWAY_ADMIN_TOKEN", help="Where the admin port asks for one."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")


def ask(
    method: str,
    url: str,
    path: str,
    token: str | None,
    *,
    timeout: float,
    content: str | None = None,
    params: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The admin port's answer; `content` is JSON, `timeout` in seconds.

    Raises UpstreamConnectError where nobody answers, ConfigError where the gateway refuses, with what it
    said, or where whoever answers is none.
    """
    shown = without_login(url)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    if content is not None:
        headers["content-type"] = "application/json"
    try:
        answer = httpx.request(
            method,
            url.rstrip("/") + path,
            content=content,
            params=params,
            headers=headers,
            timeout=timeout,
            trust_env=False,
        )
    except httpx.InvalidURL as e:  # which repeats a piece of it
        raise UpstreamConnectError(f"no gateway at {shown}: that is no URL; --admin-url takes another") from e
    except httpx.TransportError as e:
        raise UpstreamConnectError(f"no gateway at {shown} ({e}); --admin-url takes another") from e
    try:
        result = answer.json()
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise ConfigError(
            f"{shown} is no gateway's admin port ({answer.status_code}); --admin-url takes another"
        )
    if answer.status_code != 200:
        error = result.get("error")
        message = error.get("message") if isinstance(error, dict) else answer.text
        raise ConfigError(f"{answer.status_code}: {message}")
    return result
