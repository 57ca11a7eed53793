"""The Messages and Responses APIs become the chats that vLLM makes of them (tests/data/prompts)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.prompt.base import Endpoint
from gateway.prompt.files import TokenizerFiles
from gateway.prompt.local import LocalEncoder
from gateway.prompt.reader import read_prompt
from gateway.prompt.render import RenderOptions

DATA = Path(__file__).resolve().parents[2] / "data" / "prompts"


def goldens() -> list[Any]:
    cases = json.loads((DATA / "other_apis.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=f"{case['api']}: {case['name']}") for case in cases]


@pytest.mark.parametrize("case", goldens())
@pytest.mark.parametrize("template", ["tools", "parts"])
def test_a_request_has_the_prompt_of_the_chat_that_the_engine_makes(
    tiny: TokenizerFiles, case: dict[str, Any], template: str
) -> None:
    source = (DATA / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
    encoder = LocalEncoder(tiny, RenderOptions(chat_template=source))
    # `tools` needs extensions that engines try templates without, so it counts as one that refuses
    made = case.get("system_first", case["chat"]) if template == "tools" else case["chat"]
    chat = read_prompt(Endpoint.CHAT, {"model": "m", **made})
    own = read_prompt(Endpoint(case["api"]), case["body"])
    assert own.messages == case["chat"]["messages"]
    assert encoder.texts(own) == encoder.texts(chat)
    assert own.truncate_prompt_tokens == chat.truncate_prompt_tokens
    (mine,), (engines,) = encoder.tokenise(own), encoder.tokenise(chat)
    assert (mine.tokens, mine.exact_tokens) == (engines.tokens, engines.exact_tokens)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.MESSAGES, {}),
        (Endpoint.MESSAGES, {"messages": []}),
        (Endpoint.MESSAGES, {"messages": "hi"}),
        (Endpoint.MESSAGES, {"messages": ["hi"]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user"}]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "video"}]}]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": "1"}], "tools": ["t"]}),
        (Endpoint.RESPONSES, {}),
        (Endpoint.RESPONSES, {"input": []}),
        (Endpoint.RESPONSES, {"input": 3}),
        (Endpoint.RESPONSES, {"input": ["hi"]}),
        (Endpoint.RESPONSES, {"input": [{"type": "computer_call"}]}),
        (Endpoint.RESPONSES, {"input": [{"type": "reasoning", "encrypted_content": "x"}]}),
        (Endpoint.RESPONSES, {"input": "hi", "previous_response_id": "resp_1"}),
        (Endpoint.RESPONSES, {"input": "hi", "tools": [{"type": "custom", "name": "c"}]}),
    ],
)
def test_what_cant_be_followed_goes_by_load(endpoint: Endpoint, body: dict[str, Any]) -> None:
    request = read_prompt(endpoint, {"model": "m", "stream": True, "max_tokens": 5, **body})
    assert (request.model, request.messages, request.prompts, request.stream) == ("m", None, None, True)


def test_sizes_salt_and_stream_are_read() -> None:
    asked = {"model": "m", "cache_salt": "s", "stream": True}
    message = read_prompt(
        Endpoint.MESSAGES, {**asked, "max_tokens": 7, "messages": [{"role": "user", "content": "1"}]}
    )
    response = read_prompt(Endpoint.RESPONSES, {**asked, "max_output_tokens": 7, "input": "1"})
    for request in (message, response):
        assert (request.max_tokens, request.cache_salt, request.stream) == (7, "s", True)
        # their streams bring it: nothing is to be asked for, nothing to be hidden
        assert request.include_usage


def test_live_engines_counted_these_tokens(tiny: TokenizerFiles) -> None:
    """vLLM 0.32 with this tokenizer said 14 and 11 (its `usage.input_tokens`, nothing cached)."""
    encoder = LocalEncoder(tiny)
    message = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hello there"}]}
    (prompt,) = encoder.tokenise(read_prompt(Endpoint.MESSAGES, message))
    assert len(prompt.tokens) == 14
    (prompt,) = encoder.tokenise(read_prompt(Endpoint.RESPONSES, {"model": "m", "input": "hi"}))
    assert len(prompt.tokens) == 11
