"""Whose pages may ask: a browser sends simple requests for any page, and reads the answer for few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.errors import Forbidden

_FOREIGN = (b"cross-site", b"same-site")
_SHOWN = 100
"""Characters of an origin that an error repeats."""


class Pages:
    """A browser asks before it sends what a form could not, and without a word of ours it hides the answer
    from the page. But a POST with a plain content type goes out unasked, and would cost an engine its work.
    So what a browser itself says of the page (`Origin`, `Sec-Fetch-Site`) is believed: no script can set
    those two, and who is no browser does not send them."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        """`origins` may ask, beside pages of the gateway's own origin; ``*`` is everybody."""
        self._any = "*" in origins
        self._allowed = frozenset(origin.encode() for origin in origins)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Forbidden for a request of another page."""
        origin = headers.get(b"origin")
        if origin is None or self._any or origin in self._allowed:
            return
        if headers.get(b"sec-fetch-site", b"").strip().lower() in _FOREIGN:
            shown = origin.decode("latin-1")[:_SHOWN]
            raise Forbidden(f"pages of {shown!r} may not ask here; cors_origins names those that may")
