"""Request heads that were read before: a client says the same each time, but for the length of its body.

What such a head means has been worked out by then, every judgement of gateway.api.request_heads included: it
is looked up, not read again, which would cost a call for each of its headers.
"""

from __future__ import annotations

from gateway.api.request_heads import RequestHead
from gateway.upstream.headers import Headers, cuts_length, without_length

_END = b"\r\n\r\n"
_LONGEST = 4096
_MOST = 256
_MOST_DIGITS = 15
_NEVER = frozenset((b"expect", b"transfer-encoding", b"upgrade"))
"""With one of them more than the length decides what a request is."""


class KnownHeads:
    """By all bytes but the digits of ``Content-Length``. Bounded; shared by a listener's connections."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[RequestHead, Headers, int]] = {}
        """With the place of the length among the headers."""

    def __len__(self) -> int:
        return len(self._known)

    def find(self, data: bytes) -> tuple[RequestHead, Headers, bytes, bool] | None:
        """Head, headers and body of the one request that is in `data`, the first bytes of a connection or
        behind another request, and whether the body is whole; None where it has to be read."""
        end = data.find(_END, 0, _LONGEST)
        text, digits = without_length(data, end)
        known = self._known.get(text)
        if known is None or not digits.isdigit() or len(digits) > _MOST_DIGITS:
            return None
        left = int(digits) - (len(data) - end - 4)
        if left < 0 or (digits.startswith(b"0") and len(digits) > 1):
            return None
        head, headers, place = known
        headers = headers.copy()
        headers[place] = (b"content-length", digits)
        return head, headers, data[end + 4 :], not left

    def learn(self, data: bytes, head: RequestHead, headers: Headers) -> None:
        """They have been read from the beginning of `data`, and may stand. Names are in lower case."""
        end = data.find(_END, 0, _LONGEST)
        text, digits = without_length(data, end)
        names = [name for name, _ in headers]
        if (
            end > 0
            and cuts_length(text)
            and len(data) - end - 4
            <= _length(digits)  # or these are the headers of another request behind it
            and names.count(b"content-length") == 1
            and head.keep_alive
            and head.version == "1.1"
            and _NEVER.isdisjoint(names)
        ):
            if len(self._known) >= _MOST:
                self._known.clear()  # those that come again are back at once
            self._known[text] = head, headers.copy(), names.index(b"content-length")


def _length(digits: bytes) -> int:
    """As everybody reads them; else −1."""
    if digits.isdigit() and len(digits) <= _MOST_DIGITS and (digits[0] != ord("0") or len(digits) == 1):
        return int(digits)
    return -1
