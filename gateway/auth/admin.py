"""The guard of the admin port: the operator's own credential, and nothing a browser could be talked into.

Without a credential the port serves its own machine alone, and a page of somebody else's in a browser on that
machine is not the operator: such requests name a foreign host (DNS rebinding) or a foreign origin.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gateway.auth.hashing import checked_hash, is_slow, matches, sha256_of
from gateway.errors import ConfigError

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ALWAYS_OPEN = frozenset(("/health", "/ready"))
_SHORTEST = 16


def token_hash(token: str | None, file: Path | None) -> str | None:
    """The hash of the admin token: of the given one, or of what stands in `file` (a token or its hash).
    None where neither is given. Raises ConfigError."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"admin token file {file}: cannot be read") from error
    if token is None:
        return None
    if token.startswith(("sha256:", "scrypt:")):
        stored = checked_hash(token)
        if is_slow(stored):
            raise ConfigError("admin token: a sha256 hash is wanted, of a token with 256 random bits")
        return stored
    if len(token) < _SHORTEST:
        raise ConfigError(
            f"admin token: shorter than {_SHORTEST} characters; `prefix-gateway keys new` makes one"
        )
    return sha256_of(token)


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or address to bind or one that a request named, is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AdminGuard:
    """`stored` is the hash of the token; None asks for none. `certified`: whoever gets here has shown
    a client certificate. One of the two is needed where more than this machine can reach the port."""

    def __init__(
        self, app: App, stored: str | None, *, certified: bool = False, open_paths: Collection[str] = ()
    ) -> None:
        self.inner = app
        self.stored = stored
        self.certified = certified
        self._open = ALWAYS_OPEN.union(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = None if scope["path"] in self._open else self._refusal(headers)
        if refusal is None:
            await self.inner(scope, receive, send)
            return
        status, kind, message = refusal
        body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": None}})
        answer = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if status == 401:
            # browsers ask for it, and the live page works
            answer.append((b"www-authenticate", b'Basic realm="admin", charset="UTF-8"'))
        await send({"type": "http.response.start", "status": status, "headers": answer})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            return 403, "permission_error", "requests of other sites' pages are refused"
        if self.stored is None:
            if not self.certified and not is_loopback(urlsplit(f"//{host}").hostname or ""):
                return 403, "permission_error", f"this port serves its own machine, not {host!r}"
            return None
        token = _token(headers.get(b"authorization", b""))
        if token is None or not matches(token, self.stored):
            return 401, "authentication_error", "the admin token is needed: Authorization: Bearer …"
        return None


def _token(header: bytes) -> str | None:
    """Of ``Bearer`` or of ``Basic`` with any name: what a browser's own dialogue sends."""
    scheme, _, value = header.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip().decode("utf-8", "surrogateescape")
    if scheme.lower() == b"basic":
        try:
            pair = base64.b64decode(value.strip(), validate=True)
        except binascii.Error:
            return None
        return pair.partition(b":")[2].decode("utf-8", "surrogateescape")
    return None
