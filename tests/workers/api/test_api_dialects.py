"""The Messages and Responses APIs: requests that a real vLLM 0.32 answered, sent to this engine. Statuses,
fields, their order, events and counts are its own. The engine is simulated, with the recorded tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.workers.api.shapes import shape

DATA = Path(__file__).parents[2] / "data"
RECORDED: dict[str, Any] = json.loads((DATA / "vllm/other_apis_v032.json").read_text())
ERRORS = [name for name, case in RECORDED.items() if case["status"] >= 400]
STREAMS = [name for name, case in RECORDED.items() if isinstance(case["answer"], str)]
WHOLE = [name for name in RECORDED if name not in ERRORS and name not in STREAMS]
OWN_WORDS = ("err_image", "err_unknown_tool_change")
"""Refused like there, in our own words; so are bodies that can't be read, of which pydantic tells there."""


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., Any]) -> Any:
    tokenizer = str(DATA / "tokenizers/vllm-tiny")
    return start_engine("--model", "sim:fast", "--tokenizer", tokenizer, "--max-model-len", "512")


def ask(engine: Any, name: str) -> httpx.Response:
    case = RECORDED[name]
    body = case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])
    method = "GET" if case["body"] is None else "POST"
    headers = {"content-type": "application/json"}
    return httpx.request(method, engine.url + case["path"], content=body, headers=headers, trust_env=False)


def prompt_tokens(usage: dict[str, Any]) -> int:
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(part, 0) for part in parts)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_told_as_vllm_tells_them(engine: Any, name: str) -> None:
    recorded = RECORDED[name]
    answer = ask(engine, name)
    assert answer.status_code == recorded["status"]
    told, expected = answer.json(), recorded["answer"]
    assert list(told) == list(expected)
    assert told.get("type") == expected.get("type")
    told, expected = told["error"], expected["error"]
    assert list(told) == list(expected)
    assert told["type"] == expected["type"]
    if expected["type"] == "Bad Request":
        # the innermost field that is wrong; there it is at times the one that holds it, or a type's name
        assert told["param"].startswith(expected["param"].replace(".enabled", ""))
    elif name not in OWN_WORDS:
        assert told["message"] == expected["message"]


@pytest.mark.parametrize("name", WHOLE)
def test_whole_answers_have_the_recorded_fields_and_prompt_lengths(engine: Any, name: str) -> None:
    answer, recorded = ask(engine, name).json(), RECORDED[name]["answer"]
    if "count_tokens" in RECORDED[name]["path"]:
        assert answer == recorded
        return
    assert prompt_tokens(answer["usage"]) == prompt_tokens(recorded["usage"])
    if recorded.get("stop_reason") != "stop_sequence" and recorded.get("status") != "completed":
        # a simulated model does not write the text that these stop at
        assert shape(answer) == shape(recorded)


@pytest.mark.parametrize("name", ["message_stream", "response_stream"])
def test_streams_have_the_recorded_events(engine: Any, name: str) -> None:
    answer = ask(engine, name)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    ours, theirs = events(answer.text), events(RECORDED[name]["answer"])
    assert list(dict.fromkeys(kind for kind, _ in ours)) == list(dict.fromkeys(kind for kind, _ in theirs))
    by_kind = dict(theirs)
    for kind, data in ours:
        assert data["type"] == kind
        assert shape(data) == shape(by_kind[kind])
    if name == "response_stream":
        assert [data["sequence_number"] for _, data in ours] == list(range(len(ours)))


def test_what_is_cached_is_counted_as_there(engine: Any) -> None:
    """A prompt of 131 tokens has eight full blocks; of the next turn's 160 the last one is computed anew."""
    assert httpx.post(f"{engine.url}/reset_prefix_cache", trust_env=False).json() == {"success": True}
    for name in ("message", "message_again"):
        assert ask(engine, name).json()["usage"] == RECORDED[name]["answer"]["usage"]
    *_, (_, delta), _ = events(ask(engine, "message_stream").text)
    assert delta["usage"] == {
        "input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 128,
    }  # fmt: skip
    assert ask(engine, "message_turns").json()["usage"] == RECORDED["message_turns"]["answer"]["usage"]
    # the same words by another API are the same prompt
    assert ask(engine, "response").json()["usage"] == RECORDED["response"]["answer"]["usage"]


def events(text: str) -> list[tuple[str, Any]]:
    *frames, last = text.split("\n\n")
    assert last == ""
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found
