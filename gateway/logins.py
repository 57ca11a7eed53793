"""URLs as errors, logs and reports show them: without user and password."""

from __future__ import annotations


def without_login(url: str) -> str:
    """`url` with `…` for what may be a login: all before its last ``@``, wherever a parser would end the
    host, since passwords that were not percent-encoded have any character in them."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    _, at, rest = rest.rpartition("@")
    return f"{scheme}{separator}…@{rest}" if at else url
