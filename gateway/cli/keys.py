"""`prefix-gateway keys`: makes keys and their hashes. A key is shown once, and nowhere kept."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml

from gateway.auth.hashing import new_secret, scrypt_of, sha256_of
from gateway.auth.keys import ApiKey, checked_id
from gateway.auth.source import load_keyring
from gateway.errors import ConfigError

_SLOW = click.option(
    "--scrypt", "slow", is_flag=True, help="A hash that is slow to guess, for keys that people chose."
)


@click.group("keys")
def command() -> None:
    """Make API keys, or the admin token, and what to write into the key file."""


@command.command("new")
@click.option("--id", "name", default="name-it", show_default=True, help="How logs and metrics call it.")
@_SLOW
def new(name: str, slow: bool) -> None:
    """Make a key. It goes to stdout, its entry for the key file to stderr."""
    try:
        checked_id(name)
    except ConfigError as error:
        raise ConfigError(f"--{error.message}") from error
    secret = new_secret()
    click.echo("# give this to the client; it is not shown again", err=True)
    click.echo(secret)
    click.echo("# and this goes into the key file (--api-keys-file), under `keys:`", err=True)
    # quoted where YAML would take an id for a number, a date or true
    entry = yaml.safe_dump([{"id": name, "hash": _hash(secret, slow)}], sort_keys=False, width=1000)
    click.echo(entry, err=True, nl=False)


@command.command("hash")
@_SLOW
def hash_(slow: bool) -> None:
    """Read a key from stdin and print its hash. Never as an argument: those are seen by all processes."""
    secret = (
        click.prompt("key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    ).strip()
    if not secret:
        raise ConfigError("no key on stdin")
    click.echo(_hash(secret, slow))


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Read a key file as the gateway would, and say what each key may."""
    now = time.time()
    for key in load_keyring(file).keys:
        click.echo(f"{key.id}: {'; '.join(_rights(key, now))}")


def _rights(key: ApiKey, now: float) -> Iterator[str]:
    limits = key.limits
    yield f"models {', '.join(key.models)}"
    yield f"priority {key.priority}, weight {key.weight:g}"
    yield (
        f"{_limit(limits.requests_per_minute, 'requests/min')}, "
        f"{_limit(limits.tokens_per_minute, 'tokens/min')}, {_limit(limits.max_parallel, 'parallel')}"
    )
    yield f"cache {'its own' if key.cache_salt else 'shared'}"
    if key.allow:
        yield f"may say {', '.join(key.allow)}"
    if key.expires is not None:
        at = datetime.fromtimestamp(key.expires, UTC)
        yield f"{'EXPIRED' if key.ended(now) else 'expires'} {at:%Y-%m-%d %H:%M} UTC"
    if key.disabled:
        yield "DISABLED"


def _hash(secret: str, slow: bool) -> str:
    return scrypt_of(secret, secrets.token_bytes(16)) if slow else sha256_of(secret)


def _limit(value: int | None, unit: str) -> str:
    return f"any {unit}" if value is None else f"{value} {unit}"
