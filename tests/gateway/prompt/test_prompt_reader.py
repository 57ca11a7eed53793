from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt.base import Endpoint, PromptRequest, not_tokenised
from gateway.prompt.reader import read_prompt


def test_reads_a_chat_request() -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {
        "model": "m",
        "messages": messages,
        "tools": [{"type": "function"}],
        "tool_choice": "none",
        "add_generation_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "cache_salt": "tenant-1",
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }
    assert read_prompt(Endpoint.CHAT, body) == PromptRequest(
        endpoint=Endpoint.CHAT,
        model="m",
        messages=messages,
        template_args={
            "tools": [{"type": "function"}],
            "tool_choice": "none",
            "add_generation_prompt": False,
            "chat_template_kwargs": {"enable_thinking": False},
        },
        add_special_tokens=False,
        cache_salt="tenant-1",
        max_tokens=7,
        n=2,
        stream=True,
        include_usage=True,
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", ["text"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
        ([], None),
        (None, None),
        ({"text": "x"}, None),
        (["a", 1.5], None),
    ],
)
def test_prompts_of_every_form(prompt: Any, expected: Any) -> None:
    request = read_prompt(Endpoint.COMPLETIONS, {"model": "m", "prompt": prompt})
    assert request.prompts == expected
    assert request.add_special_tokens


def test_embeddings_are_no_tokens() -> None:
    body = {"model": "m", "prompt": "x", "prompt_embeds": "AAAA"}
    assert read_prompt(Endpoint.COMPLETIONS, body).prompts is None


@pytest.mark.parametrize(
    "body", [None, [], "text", 3, {"messages": "hi"}, {"messages": []}, {"messages": ["hi"]}]
)
def test_what_makes_no_sense_has_no_prompt(body: object) -> None:
    assert read_prompt(Endpoint.CHAT, body) == PromptRequest(Endpoint.CHAT, "", add_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "salt", "extra"),
    [
        ({"cache_salt": "s"}, "s", ""),
        ({"cache_salt": ["s"]}, "s", ""),
        ({"cache_salt": ["s", "t"]}, "", "['s', 't']"),
        ({"cache_salt": "s", "extra_key": "k"}, "s", "k"),
        ({"extra_key": ["k"]}, "", "k"),
        ({"extra_key": ["k", "l"]}, "", "['k', 'l']"),
        ({"lora_path": ["a", None]}, "", "['a', None]"),
        ({"cache_salt": [], "extra_key": ""}, "", ""),
        ({"cache_salt": 7, "extra_key": 7}, "", ""),
    ],
)
@pytest.mark.parametrize("endpoint", Endpoint)
def test_what_sets_a_cache_apart(endpoint: Endpoint, fields: Any, salt: str, extra: str) -> None:
    """SGLang takes a list of salts, and an `extra_key`, of which no event tells."""
    request = read_prompt(endpoint, {"model": "m", "prompt": "x", **fields})
    assert (request.cache_salt, request.extra_key) == (salt, extra)
    assert request.lora_path == ""
    assert request.salt == (f"{salt}\x1e{extra}" if extra else salt)


@pytest.mark.parametrize(
    "fields",
    [{"input_ids": [1, 2]}, {"session_params": {"id": "s", "rid": "r"}}, {"suffix": "end"}, {"suffix": ""}],
    ids=["token ids", "session", "suffix", "empty suffix"],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
def test_a_prompt_that_stands_elsewhere_is_not_read(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    """SGLang's ids and sessions. vLLM takes an empty suffix for one."""
    body = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    request = read_prompt(endpoint, {**body, **fields})
    assert (request.messages, request.prompts) == (None, None)
    nothing = read_prompt(endpoint, {**body, **dict.fromkeys(fields)})
    assert (nothing.messages is None, nothing.prompts is None) == (
        endpoint is not Endpoint.CHAT,
        endpoint is Endpoint.CHAT,
    )


@pytest.mark.parametrize(("given", "read"), [("sql", "sql"), (["sql"], "sql"), ("", ""), (None, ""), (7, "")])
def test_the_adapter_that_sglang_takes_beside_the_model(given: Any, read: str) -> None:
    request = read_prompt(Endpoint.CHAT, {"model": "m", "lora_path": given})
    assert (request.lora_path, request.extra_key) == (read, "")


@pytest.mark.parametrize(
    ("endpoint", "fields", "wants_prompt", "skips_cache"),
    [
        (Endpoint.CHAT, {"prompt_logprobs": 0}, True, True),
        (Endpoint.CHAT, {"echo": True}, True, True),
        (Endpoint.CHAT, {"echo": False, "logprobs": True}, False, False),
        (Endpoint.COMPLETIONS, {"prompt_logprobs": 1}, True, True),
        (Endpoint.COMPLETIONS, {"echo": True}, True, False),
        (Endpoint.COMPLETIONS, {"echo": True, "logprobs": 0}, True, True),
        (Endpoint.COMPLETIONS, {"echo": True, "logprobs": None}, True, False),
        (Endpoint.COMPLETIONS, {"prompt_logprobs": None, "logprobs": 3}, False, False),
    ],
)
def test_who_asks_for_log_probabilities_of_the_prompt_skips_the_cache(
    endpoint: Endpoint, fields: Any, wants_prompt: bool, skips_cache: bool
) -> None:
    request = read_prompt(endpoint, {"model": "m", "prompt": "x", **fields})
    assert (request.wants_prompt, request.skips_cache) == (wants_prompt, skips_cache)


def test_wrong_types_are_absent() -> None:
    body = {
        "model": 7,
        "messages": [{"role": "user"}],
        "tools": "none",
        "add_generation_prompt": "yes",
        "chat_template_kwargs": [],
        "cache_salt": 5,
        "max_tokens": True,
        "n": -3,
        "stream": "true",
        "stream_options": {"include_usage": "x"},
        "truncate_prompt_tokens": 1.5,
    }
    assert read_prompt(Endpoint.CHAT, body) == PromptRequest(
        Endpoint.CHAT, "", messages=[{"role": "user"}], add_special_tokens=False
    )


def test_zero_and_one_are_flags() -> None:
    body = {"messages": [{"role": "user"}], "add_generation_prompt": 0, "stream": 1}
    request = read_prompt(Endpoint.CHAT, body)
    assert request.template_args == {"add_generation_prompt": False}
    assert request.stream is True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "tools", "n", "stream", "stream_options", "max_tokens", "cache_salt"]
)


@given(endpoint=st.sampled_from(Endpoint), body=st.dictionaries(FIELDS, JSON) | JSON)
def test_never_raises(endpoint: Endpoint, body: object) -> None:
    request = read_prompt(endpoint, body)
    assert request.n >= 1
    assert request.messages is None or request.prompts is None


class Unlooked(list[Any]):
    """A list that nobody may go through."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("gone through")


@pytest.mark.parametrize("prompt", [[1, 2, 3], "h", []])
def test_very_many_prompts_are_not_even_looked_at(prompt: Any) -> None:
    request = read_prompt(Endpoint.COMPLETIONS, {"model": "m", "prompt": Unlooked([prompt] * 1025)})
    assert (request.model, request.prompts, request.too_many) == ("m", None, True)
    assert not_tokenised([], request).kind == "many"  # type: ignore[union-attr]
    request = read_prompt(Endpoint.COMPLETIONS, {"model": "m", "prompt": [prompt] * 1024})
    assert (request.prompts, request.too_many) == ([prompt] * 1024, False)


def test_one_prompt_of_many_tokens_is_one_prompt() -> None:
    tokens = list(range(5000))
    request = read_prompt(Endpoint.COMPLETIONS, {"prompt": tokens})
    assert (request.prompts, request.too_many) == ([tokens], False)


@pytest.mark.parametrize(
    ("endpoint", "name", "unit"),
    [
        (Endpoint.RESPONSES, "input", {"role": "user", "content": "x"}),
        (Endpoint.RESPONSES, "input", {"type": "function_call"}),
        (Endpoint.MESSAGES, "messages", {"role": "user", "content": "x"}),
    ],
)
def test_very_many_items_are_not_looked_at_either(endpoint: Endpoint, name: str, unit: Any) -> None:
    request = read_prompt(endpoint, {"model": "m", name: Unlooked([unit] * 16_385)})
    assert (request.messages, request.too_many) == (None, True)
    request = read_prompt(endpoint, {"model": "m", name: [unit] * 16_384})
    assert (request.messages is not None, request.too_many) == (True, False)


@pytest.mark.parametrize("blocks", [6_383, 6_384])
def test_blocks_tools_and_items_count_together(blocks: int) -> None:
    """Two messages, so many blocks in the second, 9,998 tools and one system block."""
    body = {
        "messages": [{"role": "user", "content": "x"}, {"role": "user", "content": Unlooked([{}] * blocks)}],
        "tools": [{"name": "f"}] * 9_998,
        "system": [{"type": "text", "text": "s"}],
    }
    if blocks == 6_383:
        with pytest.raises(AssertionError, match="gone through"):
            read_prompt(Endpoint.MESSAGES, body)
    else:
        assert read_prompt(Endpoint.MESSAGES, body).too_many
