"""Usage figures out of an answer, whichever API dialect it speaks."""

from __future__ import annotations

import msgspec

from gateway.types import Usage


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    # what the Responses and Messages APIs call them
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def read(self, before: Usage | None = None) -> Usage | None:
        """`before`: what an earlier event of the same stream said; a later one may name the answer alone."""
        completion = self.completion_tokens if self.completion_tokens is not None else self.output_tokens
        if self.prompt_tokens is None and self.input_tokens is None:
            if before is None or completion is None:
                return before
            return Usage(before.prompt_tokens, completion, before.cached_tokens)
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = details.cached_tokens if details is not None else None
        prompt = self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens or 0
        if details is None and self.prompt_tokens is None and self.cache_read_input_tokens is not None:
            # Messages: input_tokens are those that no cache had a part in
            cached = self.cache_read_input_tokens
            prompt += cached + (self.cache_creation_input_tokens or 0)
        return Usage(prompt, completion or 0, cached)


class _Inner(msgspec.Struct):
    usage: _Usage | None = None


class Frame(msgspec.Struct):
    """What is read of one answer or stream chunk; all else in it is skipped unread."""

    usage: _Usage | None = None
    choices: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")
    object: msgspec.Raw = msgspec.Raw(b"")
    type: msgspec.Raw = msgspec.Raw(b"")
    # the Responses and Messages APIs wrap the answer into their events
    response: msgspec.Raw = msgspec.Raw(b"")
    message: msgspec.Raw = msgspec.Raw(b"")

    @property
    def any_usage(self) -> _Usage | None:
        """Its own, or that of the answer it wraps."""
        if self.usage is not None:
            return self.usage
        for wrapped in (bytes(self.response), bytes(self.message)):
            if wrapped.startswith(b"{"):
                try:
                    return _inner_decoder.decode(wrapped).usage
                except msgspec.DecodeError:
                    return None
        return None

    @property
    def usage_only(self) -> bool:
        """The extra chunk that ``include_usage`` asks for: a usage and an empty list of choices."""
        return self.usage is not None and bytes(self.choices).replace(b" ", b"") == b"[]"

    @property
    def is_error(self) -> bool:
        """OpenAI's ``{"error": {…}}``, and the older and other forms that say so in a field of their own."""
        return (
            bytes(self.error) not in (b"", b"null")
            or bytes(self.object) == b'"error"'
            or bytes(self.type) in (b'"error"', b'"response.failed"')
        )


_decoder = msgspec.json.Decoder(Frame)
_inner_decoder = msgspec.json.Decoder(_Inner)


def read_frame(data: bytes) -> Frame | None:
    """None where it is not JSON of that shape."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_usage(body: bytes) -> Usage | None:
    """Usage of a whole JSON answer; None where it has none."""
    if body.find(b'"usage"') < 0:
        return None
    try:
        usage = _inner_decoder.decode(body).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    return usage.read() if usage is not None else None


def is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True
