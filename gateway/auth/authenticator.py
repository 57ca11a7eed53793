"""From a request's headers to the key that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.auth.keyring import Keyring
from gateway.auth.keys import ApiKey
from gateway.errors import Unauthorized

CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key"))
"""Where clients put a key: OpenAI's, Anthropic's, Azure's. None of them goes on to a worker."""
_LONGEST = 512

Headers = Iterable[tuple[bytes, bytes]]
WallClock = Callable[[], float]
"""Seconds since 1970."""


class Authenticator:
    """`keyring` may be put in place of another at any time: the next request is checked against it."""

    def __init__(self, keyring: Keyring, now: WallClock) -> None:
        self.keyring = keyring
        self._now = now

    async def __call__(self, headers: Headers) -> ApiKey:
        """Raises Unauthorized. All wrong keys get the same answer: it tells nothing of what exists."""
        secret = presented(headers)
        if secret is None:
            raise Unauthorized("an API key is needed: Authorization: Bearer …")
        key = await self.keyring.find(secret) if 0 < len(secret) <= _LONGEST else None
        if key is None or key.disabled or key.ended(self._now()):
            raise Unauthorized("this API key is not valid")
        return key


def presented(headers: Headers) -> str | None:
    """The key that a request shows, None where it shows none. Raises Unauthorized where it shows two: a proxy
    in between might have meant the other."""
    found: set[bytes] = set()
    for name, value in headers:
        if name not in CREDENTIALS:
            continue
        if name == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                found.add(token.strip())
        else:
            found.add(value.strip())
    if len(found) > 1:
        raise Unauthorized("more than one API key is given")
    return found.pop().decode("utf-8", "surrogateescape") if found else None
