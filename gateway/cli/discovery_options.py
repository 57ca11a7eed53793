"""Flags of `serve` that say where workers are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def discovery_options() -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--discovery", type=click.Choice(["static", "redis", "kubernetes", "dns"]),
            help="Where more workers come from: `redis` takes those that agents registered, `kubernetes` "
            "watches pods or EndpointSlices, `dns` asks for SRV records or addresses.  [static]",
        ),
        click.option(
            "--kubernetes-selector", metavar="LABELS", help="Which pods or slices, like app=vllm."
        ),
        click.option("--kubernetes-resource", type=click.Choice(["pods", "endpointslices"]), help="[pods]"),
        click.option("--kubernetes-namespace", help="[the gateway's own]"),
        click.option(
            "--kubeconfig", type=click.Path(path_type=Path),
            help="How to reach the API server.  [the pod's service account]",
        ),
        click.option(
            "--dns-name", "dns_names", multiple=True, metavar="NAME",
            help="_http._tcp.NAME (SRV), or NAME:PORT; repeat.",
        ),
        click.option("--dns-server", metavar="HOST[:PORT]", help="[the system's]"),
        click.option("--dns-interval", type=float, help="Seconds between two look-ups.  [5]"),
        click.option(
            "--discovery-port", metavar="NAME|NUMBER", help="Of found engines that declare none called http."
        ),
        click.option(
            "--discovery-events-port", metavar="NAME|NUMBER|none",
            help="Of their KV events, where it is not called kv-events.",
        ),
        click.option(
            "--discovery-replay-port", metavar="NAME|NUMBER",
            help="Of their replay, where it is not called kv-replay.",
        ),
    ]  # fmt: skip
