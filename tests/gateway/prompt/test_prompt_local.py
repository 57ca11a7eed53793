from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.prompt.base import Endpoint, PromptError, PromptRequest, TokenPrompt
from gateway.prompt.content import has_media
from gateway.prompt.files import TokenizerFiles
from gateway.prompt.local import LocalEncoder
from gateway.prompt.reader import read_prompt
from gateway.prompt.render import MEDIA_MARK, RenderOptions

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>\n{% endfor %}"
)
HELLO = [273, 79, 331, 1332]
"""“hello there”, as two releases of vLLM reported it."""
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def chat(messages: list[dict[str, Any]], **fields: Any) -> PromptRequest:
    return read_prompt(Endpoint.CHAT, {"model": "m", "messages": messages, **fields})


def completion(prompt: Any, **fields: Any) -> PromptRequest:
    return read_prompt(Endpoint.COMPLETIONS, {"model": "m", "prompt": prompt, **fields})


def ids(prompts: Any) -> list[list[int]]:
    return [list(prompt.tokens) for prompt in prompts]


@pytest.fixture
def encoder(tiny: TokenizerFiles) -> LocalEncoder:
    return LocalEncoder(tiny, RenderOptions(chat_template=CHATML))


@pytest.mark.anyio
async def test_prompts_of_every_form(encoder: LocalEncoder) -> None:
    request = completion(["hello there", [5, 6, 7], "", "<|im_end|>hello there"])
    assert ids(await encoder.encode(request)) == [HELLO, [5, 6, 7], [], [2, *HELLO]]
    await encoder.close()


@pytest.mark.anyio
async def test_long_work_goes_to_a_thread_with_the_same_result(tiny: TokenizerFiles) -> None:
    inline = LocalEncoder(tiny, inline_chars=10**9, inline_messages=10**9)
    threaded = LocalEncoder(tiny, inline_chars=0, inline_messages=0)
    request = chat([{"role": "user", "content": f"message number {i}"} for i in range(50)])
    expected = ids(await inline.encode(request))
    assert len(expected[0]) > 50 * 5
    assert ids(await threaded.encode(request)) == expected
    assert ids(await threaded.encode(request)) == expected
    await inline.close()
    await threaded.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "request_",
    [
        PromptRequest(Endpoint.CHAT, "m"),
        PromptRequest(Endpoint.COMPLETIONS, "m"),
        chat([{"content": "no role"}]),
        chat([{"role": "user", "content": 7}]),
        chat([{"role": "user", "content": [{"type": "text", "text": 7}]}]),
        chat([{"role": "user", "content": [7]}]),
        chat([{"role": "user", "content": "x"}], tools=[{"type": "function"}]),
        chat([{"role": "user", "content": "x"}], tools=["f"]),
        chat([{"role": "assistant", "tool_calls": ["f"]}]),
        chat([{"role": "user", "content": "x"}], chat_template="{{ messages }}"),
        chat([{"role": "user", "content": "x"}], chat_template_kwargs={"chat_template": "y"}),
        chat([{"role": "user", "content": "lone surrogate \ud800"}]),
        completion("\ud800"),
        completion([-1, 2]),
        completion([2**32]),
        completion([1, "x"]),
        completion([[1], [1.5]]),
    ],
)
async def test_what_an_engine_would_refuse_has_no_tokens(
    encoder: LocalEncoder, request_: PromptRequest
) -> None:
    assert list(await encoder.encode(request_)) == []
    with pytest.raises(PromptError):
        encoder.tokenise(request_)
    await encoder.close()


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_that_is_an_embedding_has_no_tokens(encoder: LocalEncoder, field: str) -> None:
    """As vLLM 0.33 takes it. The engine is not asked for them either: it would count a placeholder."""
    said = {"role": "assistant", "content": "x", field: {"type": "prompt_embeds", "prompt_embeds": "AA=="}}
    messages = [said, {"role": "user", "content": "y"}]
    with pytest.raises(PromptError, match="reasoning must be a text"):
        encoder.tokenise(chat(messages))
    assert has_media(messages)
    assert not has_media([{**said, field: "so"}, messages[1]])


def test_no_template(tiny: TokenizerFiles) -> None:
    with pytest.raises(PromptError, match="no chat template"):
        LocalEncoder(replace(tiny, chat_templates={})).tokenise(chat([{"role": "user", "content": "x"}]))


def test_special_tokens_at_the_edges(tokenizers: dict[str, TokenizerFiles]) -> None:
    encoder = LocalEncoder(tokenizers["mistral-v3"])
    assert ids(encoder.tokenise(completion("hello there"))) == [[1, 7080, 29477, 1504]]
    assert ids(encoder.tokenise(completion("hello there", add_special_tokens=False))) == [[7080, 29477, 1504]]
    assert ids(encoder.tokenise(completion([7080, 29477, 1504]))) == [[7080, 29477, 1504]]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"truncate_prompt_tokens": 9}, [1, 7080, 29477, 1504]),
        ({"truncate_prompt_tokens": -1}, [1, 7080, 29477, 1504]),
        ({"truncate_prompt_tokens": 2}, [1, 1504]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [29477, 1504]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [1, 7080]),
        ({"truncate_prompt_tokens": 1, "add_special_tokens": False}, [1504]),
    ],
)
def test_truncation(
    tokenizers: dict[str, TokenizerFiles], fields: dict[str, Any], expected: list[int]
) -> None:
    encoder = LocalEncoder(tokenizers["mistral-v3"])
    assert ids(encoder.tokenise(completion("hello there", **fields))) == [expected]


def test_truncation_of_token_ids(encoder: LocalEncoder) -> None:
    assert ids(encoder.tokenise(completion([1, 2, 3, 4], truncate_prompt_tokens=2))) == [[3, 4]]
    assert ids(encoder.tokenise(completion([1, 2, 3, 4], truncate_prompt_tokens=0))) == [[]]


def test_next_turn_begins_with_the_last_one(encoder: LocalEncoder) -> None:
    turns = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hello there"}]
    first = encoder.tokenise(chat(turns, add_generation_prompt=False))[0].tokens
    later = encoder.tokenise(chat([*turns, *turns], add_generation_prompt=False))[0].tokens
    assert later[: len(first)] == first
    assert len(later) == 2 * len(first)


@pytest.mark.parametrize("template", [CHATML, PARTS])
def test_tokens_are_trusted_up_to_the_first_image(tiny: TokenizerFiles, template: str) -> None:
    encoder = LocalEncoder(tiny, RenderOptions(chat_template=template))
    system = {"role": "system", "content": "hello there"}
    content = [{"type": "text", "text": "what is"}, IMAGE, {"type": "text", "text": "this"}, IMAGE]
    request = chat([system, {"role": "user", "content": content}, {"role": "user", "content": [IMAGE]}])
    assert encoder.texts(request)[0].count(MEDIA_MARK) == 1
    (prompt,) = encoder.tokenise(request)
    # <|im_start|>system\nhello there<|im_end|>\n: what follows may merge with what the engine puts there
    before = encoder.tokenise(chat([system], add_generation_prompt=False))[0].tokens
    assert prompt.exact_tokens == len(before)
    assert prompt.tokens[: len(before)] == before
    assert len(prompt.tokens) > prompt.exact_tokens


def test_an_image_at_the_head_leaves_nothing_to_trust(encoder: LocalEncoder) -> None:
    (prompt,) = encoder.tokenise(chat([{"role": "user", "content": [IMAGE]}]))
    assert prompt.exact_tokens == 0


def test_a_client_who_writes_the_mark_only_harms_himself(encoder: LocalEncoder) -> None:
    (prompt,) = encoder.tokenise(completion(f"hello there{MEDIA_MARK}hello there"))
    assert prompt == TokenPrompt(prompt.tokens, 0)


def test_engine_flags(tiny: TokenizerFiles) -> None:
    user = [{"role": "user", "content": "x"}]
    tool = {"type": "function", "function": {"name": "f"}}
    source = "{{ tools is none }} {{ mood }} {{ messages[0].content is string }}"
    engine = LocalEncoder(
        tiny,
        RenderOptions(
            chat_template=source,
            chat_template_content_format="openai",
            exclude_tools_when_tool_choice_none=True,
            default_chat_template_kwargs={"mood": "calm"},
        ),
    )
    assert engine.texts(chat(user, tools=[tool], tool_choice="none")) == ["True calm False"]
    assert engine.texts(chat(user, tools=[tool], chat_template_kwargs={"mood": "loud"})) == [
        "False loud False"
    ]
    assert engine.texts(chat(user, chat_template_kwargs={"mood": None})) == ["True calm False"]


def test_request_templates_where_the_engine_trusts_them(tiny: TokenizerFiles) -> None:
    engine = LocalEncoder(tiny, RenderOptions(trust_request_chat_template=True))
    user = [{"role": "user", "content": "x"}]
    for i in range(20):
        assert engine.texts(chat(user, chat_template=f"{i}{{{{ messages[0].content }}}}")) == [f"{i}x"]
    with pytest.raises(PromptError, match="does not compile"):
        engine.texts(chat(user, chat_template="{% if %}"))


def test_tool_use_template_serves_requests_with_tools(tiny: TokenizerFiles) -> None:
    engine = LocalEncoder(replace(tiny, chat_templates={"default": "plain", "tool_use": "with tools"}))
    user = [{"role": "user", "content": "x"}]
    assert engine.texts(chat(user)) == ["plain"]
    assert engine.texts(chat(user, tools=[{"type": "function", "function": {"name": "f"}}])) == ["with tools"]


@pytest.mark.anyio
async def test_a_very_long_prompt_is_worked_on_in_steps_with_the_same_result(tiny: TokenizerFiles) -> None:
    text = "many words make a long prompt " * 10_000
    chat = PromptRequest(Endpoint.CHAT, "m", messages=[{"role": "user", "content": text}])
    encoder = LocalEncoder(tiny)
    turns = 0
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns, again
        turns += 1
        again = loop.call_soon(turn)

    again = loop.call_soon(turn)
    (prompt,) = await encoder.encode(chat)
    again.cancel()
    # before it is cut, before it is tokenised in a thread, and before the end
    assert turns >= 3
    assert [prompt] == LocalEncoder(tiny).tokenise(chat)
    assert len(prompt.tokens) == 60_012


@pytest.mark.anyio
async def test_beyond_what_any_engine_takes_it_is_not_tokenised(tiny: TokenizerFiles) -> None:
    encoder = LocalEncoder(tiny, most_chars=400_000)
    fits = "a" * 400_000
    within, beyond = await encoder.encode(
        PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[fits, fits + "b"], add_special_tokens=False)
    )
    assert within.exact_tokens == len(within.tokens)
    assert (len(beyond.tokens), beyond.exact_tokens) == (100_000, 0)
