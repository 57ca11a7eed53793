"""Bodies that cannot be read: each says which field it is."""

from __future__ import annotations

import pytest

from workers.api.errors import InvalidBody
from workers.api.schema import ChatBody, CompletionBody, parse


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", "body"),
        (b"[1]", "body"),
        (b'{"prompt": "\xff\xfe"}', "body"),
        (b'{"prompt": "\\ud800"}', "body"),
        (b"{bad", "body.1"),
        (b'{"max_tokens": 1.5}', "body.max_tokens"),
        (b'{"temperature": "hot"}', "body.temperature"),
        (b'{"stream": "sometimes"}', "body.stream"),
        (b'{"stream_options": {"include_usage": 7}}', "body.stream_options.include_usage"),
        (b'{"stop_token_ids": [1, "x"]}', "body.stop_token_ids.1"),
        (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", "body.prompt.0.0"),
    ],
)
def test_what_cannot_be_read_is_named(raw: bytes, param: str) -> None:
    with pytest.raises(InvalidBody) as refused:
        parse(raw, CompletionBody)
    assert refused.value.param == param
    assert refused.value.status == 400


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidBody) as refused:
        parse(b'{"model": "m"}', ChatBody)
    assert refused.value.param == "body.messages"
    assert refused.value.message == "1 validation error: body.messages: Field required"


def test_numbers_may_be_written_as_vllm_takes_them() -> None:
    body = parse(b'{"max_tokens": 5.0, "top_k": "3", "temperature": 1, "n": null}', CompletionBody)
    assert (body.max_tokens, body.top_k, body.temperature, body.choices) == (5, 3, 1.0, 1)


def test_texts_that_look_like_numbers_stay_texts() -> None:
    assert parse(b'{"prompt": ["1", "2"]}', CompletionBody).prompt == ["1", "2"]
    assert parse(b'{"prompt": "null", "stop": "5"}', CompletionBody).stops == ("5",)
