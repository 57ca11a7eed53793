"""Values of the right type that could never be of use. A check raises ValueError in an operator's words."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from gateway.logins import without_login

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[^\s/,@?#:\[\]A-Z]+)(:[0-9]{1,5})?\Z")


def checked_origin(text: str) -> str:
    """As browsers send it in `Origin`; ``*`` is every page, ``null`` one that has none."""
    if text in ("*", "null"):
        return text
    if not _ORIGIN.match(text):
        more = "; several are separated by blanks" if "," in text else ""
        raise ValueError(
            f"{without_login(text)!r} is no origin: scheme, host and port as browsers send them, "
            f"like https://chat.example or http://10.0.0.1:3000{more}"
        )
    if (text.partition("://")[0], text.rpartition(":")[2]) in (("http", "80"), ("https", "443")):
        raise ValueError(f"{text!r}: browsers leave the standard port out, so it would match no page")
    return text


def checked_collector(text: str) -> str:
    """Where spans are sent."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("a URL like http://collector:4318/v1/traces is wanted")
    return text
