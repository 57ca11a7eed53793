"""The gateway's exceptions, drawn once. Other libraries' errors are mapped to these where they arise.

GatewayError
├── ClientError                 the caller can mend it (4xx)
│   ├── InvalidRequest          400  names the field
│   ├── Unauthorized            401
│   ├── Forbidden               403
│   ├── NotFound                404  no such path
│   ├── ModelNotFound           404  lists what exists
│   ├── MethodNotAllowed        405
│   ├── RequestTimeout          408  a body that does not come
│   ├── BodyTooLarge            413
│   ├── UnsupportedEncoding     415  a content-encoding that we can't look into
│   └── RateLimited             429  Retry-After
├── LoopDetected                508  it came through this very gateway before
├── Unavailable                 503  no worker can take it now
│   └── Overloaded              429  every worker is full; Retry-After
├── UpstreamError               what a worker did to us
│   ├── UpstreamConnectError    before a byte of the request was answered: another worker may be tried
│   ├── UpstreamTimeout         connect, first byte, idle or total; says which
│   │   └── UpstreamGivenUp     it hangs, and its first byte is waited for no longer
│   └── UpstreamProtocolError   bytes that are not HTTP, or a body that ended too soon
├── EventDecodeError            bytes from an engine that are not a batch of KV events
├── ConfigError                 settings that cannot work; the message says what to change
│   └── MissingExtra            they want a library that is not installed
├── StoreError                  Redis: absent, slow, refusing
└── DiscoveryError              where workers are listed (API server, DNS): absent, slow, refusing
"""

from __future__ import annotations

STORE_FAILURES = (
    "unavailable", "timeout", "certificate", "auth", "forbidden", "wrong_url", "readonly", "out_of_memory",
    "refused",
)  # fmt: skip
"""Why Redis did not carry a command out."""


LONGEST_MESSAGE = 4096
_SHOWN = 200


def brief(text: str, most: int = _SHOWN) -> str:
    """What a client wrote, for a message or a log: it decides on the words, but not on how many."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


class GatewayError(Exception):
    """Root of all. `status`, `type` and `code` shape the OpenAI error body when it reaches a client. Messages
    of more than `LONGEST_MESSAGE` characters are cut."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        message = brief(message, LONGEST_MESSAGE)
        super().__init__(message)
        self.message = message
        self.told = message
        """To clients; `message` may name what is none of their business."""
        self.param = param
        self.retry_after = retry_after


class ClientError(GatewayError):
    status = 400
    type = "invalid_request_error"


class InvalidRequest(ClientError):
    pass


class Unauthorized(ClientError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(ClientError):
    status = 403
    type = "permission_error"


class ModelNotFound(ClientError):
    status = 404
    code = "model_not_found"


class NotFound(ClientError):
    status = 404
    code = "not_found"


class MethodNotAllowed(ClientError):
    status = 405
    code = "method_not_allowed"


class RequestTimeout(ClientError):
    status = 408
    code = "request_timeout"


class BodyTooLarge(ClientError):
    status = 413
    code = "body_too_large"


class UnsupportedEncoding(ClientError):
    status = 415
    code = "unsupported_encoding"


class RateLimited(ClientError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class LoopDetected(GatewayError):
    status = 508
    code = "loop_detected"


class Unavailable(GatewayError):
    status = 503
    type = "service_unavailable_error"


class Overloaded(Unavailable):
    status = 429
    type = "rate_limit_error"
    code = "overloaded"


class UpstreamError(GatewayError):
    status = 502
    type = "upstream_error"

    def __init__(self, message: str, *, told: str | None = None) -> None:
        super().__init__(message)
        if told is not None:
            self.told = told


class UpstreamConnectError(UpstreamError):
    pass


class UpstreamTimeout(UpstreamError):
    """`phase` is one of ``connect``, ``first_byte``, ``idle``, ``total``."""

    status = 504

    def __init__(self, message: str, *, phase: str, told: str | None = None) -> None:
        super().__init__(message, told=told)
        self.phase = phase


class UpstreamGivenUp(UpstreamTimeout):
    def __init__(self, message: str, *, told: str | None = None) -> None:
        super().__init__(message, phase="first_byte", told=told)


class UpstreamProtocolError(UpstreamError):
    pass


class EventDecodeError(GatewayError):
    pass


class ConfigError(GatewayError):
    pass


class MissingExtra(ConfigError):
    """The project is installed from its source: a registry has it not, or something else of its name."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra `{extra}`: `pip install '.[{extra}]'` in the project's folder; its lock "
            "requirements/run.txt, `make install` and the image have it"
        )


class StoreError(GatewayError):
    """`kind` is one of STORE_FAILURES, or says what was wrong with what Redis gave."""

    def __init__(self, message: str, *, kind: str = "unavailable") -> None:
        super().__init__(message)
        self.kind = kind


class DiscoveryError(GatewayError):
    """`expired`: what was asked for is history by now; only a new listing helps."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired
