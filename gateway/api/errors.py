"""Errors as clients of the OpenAI API (and of Anthropic's, on its paths) expect them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from gateway.errors import BodyTooLarge, GatewayError, RequestTimeout, Unauthorized
from gateway.upstream.headers import Headers


class Dialect(Enum):
    OPENAI = "openai"
    RESPONSES = "responses"
    MESSAGES = "messages"


_MESSAGES_TYPES = {
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Of the Messages API, where they differ from OpenAI's: https://docs.anthropic.com/en/api/errors"""


@dataclass(slots=True)
class Answer:
    """A whole answer of our own."""

    status: int
    body: bytes
    headers: Headers = field(default_factory=list)


def json_answer(status: int, value: object, headers: Headers | None = None) -> Answer:
    return Answer(
        status, msgspec.json.encode(value), [(b"content-type", b"application/json"), *(headers or [])]
    )


def error_answer(error: GatewayError, dialect: Dialect = Dialect.OPENAI) -> Answer:
    headers: Headers = []
    if error.retry_after is not None or error.status == 429:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after or 1.0))))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))  # RFC 9110, section 11.6.1
    if isinstance(error, BodyTooLarge | RequestTimeout):
        # the rest of that body would be taken for the next request's head
        headers.append((b"connection", b"close"))
    return json_answer(error.status, _shape(error, dialect), headers)


def error_event(error: GatewayError, dialect: Dialect = Dialect.OPENAI) -> bytes:
    """The last event of a stream that can't go on."""
    data = msgspec.json.encode(_shape(error, dialect, streamed=True))
    name = b"" if dialect is Dialect.OPENAI else b"event: error\n"
    return b"%sdata: %s\n\n" % (name, data)


def _shape(error: GatewayError, dialect: Dialect, *, streamed: bool = False) -> dict[str, object]:
    if dialect is Dialect.MESSAGES:
        kind = _MESSAGES_TYPES.get(error.status) or ("api_error" if error.status >= 500 else error.type)
        return {"type": "error", "error": {"type": kind, "message": error.told}}
    if dialect is Dialect.RESPONSES and streamed:
        return {"type": "error", "code": error.code, "message": error.told, "param": error.param}
    return {
        "error": {
            "message": error.told,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }
