"""What one API key may do, and how an operator writes that down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from gateway.auth.hashing import PREFIX, checked_hash
from gateway.errors import ConfigError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SALT = re.compile(r"[A-Za-z0-9._-]{1,48}\Z")
AUTO = "auto"
_PRIORITIES = range(-1, 10)


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit. Rates are token buckets that hold one minute's worth."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and answer together, as the engine counts them."""
    max_parallel: int | None = None

    @property
    def any(self) -> bool:
        return (self.requests_per_minute, self.tokens_per_minute, self.max_parallel) != (None, None, None)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`id` is what logs, metrics and queues call it; the key itself is nowhere."""

    id: str
    hashes: tuple[str, ...] = ()
    """More than one while a key is being rotated."""
    models: tuple[str, ...] = ("*",)
    """Names as requests give them; ``*`` stands for any run of characters."""
    priority: int = 0
    """Its most urgent class (lower goes first): a request may ask for less, never for more."""
    weight: float = 1.0
    limits: Limits = NO_LIMITS
    cache_salt: str = ""
    """What keeps its cache from everybody else's; empty where it shares."""
    allow: tuple[str, ...] = ()
    """Fields and headers that the door lets through for this key."""
    expires: float | None = None
    """Seconds since 1970."""
    disabled: bool = False

    @property
    def restricted(self) -> bool:
        return "*" not in self.models

    def ended(self, now: float) -> bool:
        """Whether it has expired. `now` is in seconds since 1970."""
        return self.expires is not None and now >= self.expires

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)


def key_from(fields: Mapping[str, Any]) -> ApiKey:
    """One entry of a key file. Raises ConfigError that names the entry and the fault, never a secret."""
    name = checked_id(fields.get("id"))
    for field in fields:
        if field not in _FIELDS:
            raise ConfigError(f"key {name!r}: unknown field {field!r}; known: {', '.join(_FIELDS)}")
    try:
        hashes = _hashes(fields)
        return ApiKey(
            id=name,
            hashes=hashes,
            models=_names(fields, "models", ("*",)),
            priority=_priority(fields.get("priority", 0)),
            weight=_weight(fields.get("weight", 1.0)),
            limits=Limits(
                _count(fields, "requests_per_minute"),
                _count(fields, "tokens_per_minute"),
                _count(fields, "max_parallel"),
            ),
            cache_salt=_salt(fields.get("cache_salt"), hashes),
            allow=_names(fields, "allow", ()),
            expires=_expiry(fields.get("expires")),
            disabled=_flag(fields.get("disabled", False)),
        )
    except ConfigError as error:
        raise ConfigError(f"key {name!r}: {error.message}") from error


def checked_id(name: object) -> str:
    """Raises ConfigError, which does not repeat it: a key itself may stand there by mistake."""
    if not isinstance(name, str) or not _ID.match(name):
        raise ConfigError("id must be 1–64 letters, digits or ._-, a letter or digit first")
    if name.startswith(PREFIX):
        raise ConfigError(f"id: {PREFIX}… is a key; an id is seen in logs and metrics")
    return name


_FIELDS = (
    "id", "hash", "hashes", "models", "priority", "weight", "requests_per_minute", "tokens_per_minute",
    "max_parallel", "cache_salt", "allow", "expires", "disabled",
)  # fmt: skip


def _hashes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    given = [fields["hash"]] if "hash" in fields else []
    given += fields.get("hashes") or []
    if not given or not all(isinstance(item, str) for item in given):
        raise ConfigError("hash is missing; `prefix-gateway keys new` makes a key and its hash")
    return tuple(checked_hash(item) for item in given)


def _names(fields: Mapping[str, Any], field: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = fields.get(field)
    if value is None:
        return default
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{field}: a list of names is wanted")
    return tuple(names)


def _count(fields: Mapping[str, Any], field: str) -> int | None:
    value = fields.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{field}: a whole number above zero is wanted")
    return value


def _priority(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in _PRIORITIES:
        raise ConfigError(f"priority: a whole number from {_PRIORITIES[0]} to {_PRIORITIES[-1]} is wanted")
    return value


def _weight(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.001 <= value <= 1000:
        raise ConfigError("weight: a number from 0.001 to 1,000 is wanted")
    return float(value)


def _salt(value: Any, hashes: tuple[str, ...]) -> str:
    """`auto` makes one that nobody can guess, and that stays while the first hash does."""
    if value is None:
        return ""
    if not isinstance(value, str) or not _SALT.match(value):
        raise ConfigError("cache_salt: `auto`, or 1–48 letters, digits or ._-")
    if value != AUTO:
        return value
    return sha256(b"cache_salt\x1f" + hashes[0].encode()).hexdigest()[:32]


def _expiry(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ConfigError("expires: a date like 2027-01-31 is wanted") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time.min)
    if not isinstance(value, datetime):
        raise ConfigError("expires: a date like 2027-01-31 is wanted")
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC).timestamp()
    except OverflowError:  # the first or last day that there is, in another zone
        raise ConfigError("expires: a date like 2027-01-31 is wanted") from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError("disabled: true or false is wanted")
    return value
