"""Where keys come from: a YAML or JSON file, and entries of the settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gateway import yaml_text
from gateway.auth.keyring import Keyring
from gateway.auth.keys import ApiKey, key_from
from gateway.errors import ConfigError


def load_keyring(path: Path | None, entries: Iterable[str] = ()) -> Keyring:
    """`entries` are ``id=hash`` each. Raises ConfigError: half a list of keys never comes to count."""
    keys = [_entry(text) for text in entries]
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
    try:
        return [key_from(entry) for entry in entries]
    except ConfigError as error:
        raise ConfigError(f"key file {path}: {error.message}") from error


def _entry(text: str) -> ApiKey:
    name, equals, stored = text.partition("=")
    if not equals:
        raise ConfigError("api_keys: id=HASH is wanted; `prefix-gateway keys new` prints one")
    return key_from({"id": name, "hash": stored})
