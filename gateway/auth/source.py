"""Where keys come from: a YAML or JSON file, and entries of the settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gateway import yaml_text
from gateway.auth.hashing import KINDS
from gateway.auth.keyring import Keyring
from gateway.auth.keys import ApiKey, key_from
from gateway.errors import ConfigError


def load_keyring(path: Path | None, entries: Iterable[str] = ()) -> Keyring:
    """`entries` are ``id=hash`` each. Raises ConfigError: half a list of keys never comes to count."""
    keys = [_entry(number, text) for number, text in enumerate(entries, 1)]
    if path is not None:
        keys += read_key_file(path)
    return Keyring(keys)


def read_key_file(path: Path) -> list[ApiKey]:
    """A list of entries (docs/security.md), also under a top-level ``keys``. Raises ConfigError."""
    try:
        data = yaml_text.read(path).value
    except OSError as error:
        raise ConfigError(f"key file {path}: {error.strerror or error}") from error
    except yaml_text.Malformed as error:
        # never a name from it: where something is amiss, that may be a key
        what = error.what if error.name is None else f"a name {error.what}"
        raise ConfigError(f"key file {path}: {error.where}{what}") from None
    entries = data.get("keys") if isinstance(data, dict) else data
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"key file {path}: a list of keys is wanted, each with id and hash")
    keys = []
    for number, entry in enumerate(entries, 1):
        try:
            keys.append(key_from(entry))
        except ConfigError as error:
            raise ConfigError(f"key file {path}: entry {number}: {error.message}") from error
    return keys


def _entry(number: int, text: str) -> ApiKey:
    name, equals, stored = text.partition("=")
    if not equals or not stored.startswith(KINDS):
        # nothing of it: a key in plain may well have a = in it
        raise ConfigError(
            f"api_keys, entry {number}: id=HASH is wanted; `prefix-gateway keys new` prints one"
        )
    try:
        return key_from({"id": name, "hash": stored})
    except ConfigError as error:
        raise ConfigError(f"api_keys, entry {number}: {error.message}") from error
