"""Who asks, as far as a request says it itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from gateway.api.body import Fields
from gateway.routing.caller import Caller

Identify: TypeAlias = Callable[[Mapping[bytes, bytes], Fields | None], Caller]
"""From a request's headers (the first of each name, in lower case) and fields. May raise a ClientError."""

_LONGEST_S = 86_400.0
_TIERS = {"priority": -1, "flex": 1}
_MOST_URGENT, _LEAST_URGENT = -1, 9
_HEADERS = frozenset((b"x-session-id", b"x-priority", b"x-request-timeout"))
_FIELDS = frozenset(("prompt_cache_key", "user", "service_tier"))
_NOBODY = Caller()


def anonymous(headers: Mapping[bytes, bytes], fields: Fields | None) -> Caller:
    """Where nobody has to show a key: session and urgency are the client's own word.

    The session is the header ``X-Session-Id``, or the fields ``prompt_cache_key`` or ``user``. Urgency is
    the header ``X-Priority`` (lower goes first, as in vLLM's own field), or OpenAI's ``service_tier``. The
    header ``X-Request-Timeout`` says how many seconds it will wait for all of it.
    """
    if _HEADERS.isdisjoint(headers) and (not fields or _FIELDS.isdisjoint(fields)):
        return _NOBODY
    session = headers.get(b"x-session-id", b"").decode("latin-1")
    fields = fields or {}
    for name in ("prompt_cache_key", "user"):
        if not session and isinstance(value := fields.get(name), str):
            # JSON can say half a surrogate pair, which nothing that hashes or writes the name could encode
            session = value.encode("utf-8", "replace").decode()
    return Caller(
        session=session,
        priority=_priority(headers, fields),
        deadline_s=_deadline(headers.get(b"x-request-timeout")),
    )


def _deadline(said: bytes | None) -> float | None:
    if said is None:
        return None
    try:
        seconds = float(said)
    except ValueError:
        return None
    # also keeps nan out
    return seconds if 0 < seconds <= _LONGEST_S else None


def _priority(headers: Mapping[bytes, bytes], fields: Fields) -> int:
    said = headers.get(b"x-priority")
    if said is None:
        tier = fields.get("service_tier")
        return _TIERS.get(tier, 0) if isinstance(tier, str) else 0
    try:
        return max(_MOST_URGENT, min(_LEAST_URGENT, int(said)))
    except ValueError:
        return 0
