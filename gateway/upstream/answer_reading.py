"""What the head of an answer says, date and length aside. An engine says the same each time: where its
connection knows the head, this is made once and looked up from then on."""

from __future__ import annotations

import msgspec

from gateway.upstream.headers import HOP_BY_HOP, Headers, end_to_end
from gateway.upstream.packing import coding_of
from gateway.upstream.wire import ResponseHead

JSON, STREAM = b"application/json", b"text/event-stream"

NOT_FORWARDED = HOP_BY_HOP | frozenset(
    (
        b"content-length",  # written anew
        b"date",  # our server's own, which would stand there twice
        b"server",
        b"x-request-id",
        b"x-gateway-worker",  # ours to say
        b"x-gateway-prompt-tokens",
        b"x-gateway-matched-tokens",
        b"timing-allow-origin",  # which pages may read, time and embed an answer is ours to say, too
        b"cross-origin-resource-policy",
    )
)
_FOR_PAGES = b"access-control-"
"""So begins the rest of what opens an answer to pages of browsers; vLLM sends it to everybody."""
NOTE = "reading"
"""Under which a head's notes have it."""


class AnswerReading(msgspec.Struct, frozen=True):
    kind: bytes
    """`JSON` or `STREAM`; empty for what is not looked into."""
    coding: bytes
    """How that is compressed; empty where it is not."""
    passed: Headers
    """Those that the client gets. To be left as they are."""


def answer_reading(head: ResponseHead) -> AnswerReading:
    """Made anew, and noted."""
    headers = head.headers
    lookup = dict(reversed(headers))  # the first header of each name
    kind = lookup.get(b"content-type", b"").partition(b";")[0].strip().lower()
    reading = head.notes[NOTE] = AnswerReading(
        kind=kind if kind in (JSON, STREAM) else b"",
        coding=coding_of(headers) if b"content-encoding" in lookup else b"",
        passed=[
            header for header in end_to_end(headers, NOT_FORWARDED) if not header[0].startswith(_FOR_PAGES)
        ],
    )
    return reading
