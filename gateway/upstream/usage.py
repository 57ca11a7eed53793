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

    def read(self) -> Usage | None:
        prompt = self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens
        if prompt is None:
            return None
        completion = self.completion_tokens if self.completion_tokens is not None else self.output_tokens
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = details.cached_tokens if details is not None else self.cache_read_input_tokens
        return Usage(prompt, completion or 0, cached)


class Frame(msgspec.Struct):
    """What is read of one answer or stream chunk; all else in it is skipped unread."""

    usage: _Usage | None = None
    choices: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")
    object: msgspec.Raw = msgspec.Raw(b"")
    type: msgspec.Raw = msgspec.Raw(b"")

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
            or bytes(self.type) == b'"error"'
        )


_decoder = msgspec.json.Decoder(Frame)


def read_frame(data: bytes) -> Frame | None:
    """None where it is not JSON of that shape."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_usage(body: bytes) -> Usage | None:
    """Usage of a whole JSON answer; None where it has none."""
    if b'"usage"' not in body:
        return None
    frame = read_frame(body)
    return frame.usage.read() if frame is not None and frame.usage is not None else None
