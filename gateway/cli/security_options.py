"""The flags of keys, TLS and the bounds that connections are held to (docs/security.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_FILE = click.Path(path_type=Path)


def security_options() -> list[Any]:
    """Decorators, as `click.option` makes them."""
    return [
        click.option("--api-keys-file", type=_FILE, help="Asks every client for one of the keys in it."),
        click.option(
            "--api-key", "api_keys", multiple=True, metavar="ID=HASH",
            help="A key that clients may show; repeat. `prefix-gateway keys new` makes one.",
        ),
        click.option(
            "--limits-fail", type=click.Choice(["open", "closed"]),
            help="Keys' limits without Redis: count here alone, or refuse.  [open]",
        ),
        click.option("--admin-token-file", type=_FILE, help="In it: the operator's token, or its hash."),
        click.option("--open-metrics/--no-open-metrics", default=None, help="/metrics asks for no token."),
        click.option("--worker-api-key-file", type=_FILE, help="In it: the key that engines ask for."),
        click.option(
            "--worker-network", "worker_networks", multiple=True, metavar="CIDR",
            help="Where workers added through admin may be; repeat.  [loopback and private networks]",
        ),
        click.option("--tls-cert", type=_FILE, help="Certificate chain (PEM) of the public port."),
        click.option("--tls-key", type=_FILE, help="Its key."),
        click.option("--tls-client-ca", type=_FILE, help="Clients must show a certificate signed by it."),
        click.option("--admin-tls-cert", type=_FILE, help="The same for the admin port."),
        click.option("--admin-tls-key", type=_FILE),
        click.option("--admin-tls-client-ca", type=_FILE),
        click.option(
            "--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN",
            help="Pages of this origin may call the API from a browser; repeat.  [none]",
        ),
        click.option("--head-timeout", type=float, help="Seconds for a request's headers.  [10]"),
        click.option("--body-timeout", type=float, help="Seconds for a request's body.  [60]"),
        click.option("--send-timeout", type=float, help="Seconds a client may take nothing.  [120]"),
        click.option("--keep-alive-timeout", type=int, help="Seconds between two requests.  [75]"),
        click.option("--max-head-bytes", type=int, help="Larger heads get 431.  [65536]"),
        click.option("--max-headers", type=int, help="More headers get 431.  [100]"),
        click.option("--max-connections", type=int, help="Of clients, at once.  [8192]"),
    ]  # fmt: skip
