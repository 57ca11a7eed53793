"""Bytes in place of tokens, the choice of a source, and the count that tells whether it was right."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.prompt.approx import BytesEncoder
from gateway.prompt.base import Endpoint
from gateway.prompt.local import LocalEncoder
from gateway.prompt.reader import read_prompt
from gateway.prompt.resolve import EncoderChoice, choose_encoder

TINY = Path(__file__).resolve().parents[2] / "data" / "tokenizers" / "vllm-tiny"


async def encode(body: dict[str, Any], endpoint: Endpoint = Endpoint.COMPLETIONS) -> list[list[int]]:
    return [list(prompt.tokens) for prompt in await BytesEncoder().encode(read_prompt(endpoint, body))]


@pytest.mark.anyio
async def test_four_bytes_are_one_token() -> None:
    first, second = struct.unpack("<2I", b"abcdef\0\0")
    assert await encode({"prompt": "abcdef"}) == [[first, second]]
    assert await encode({"prompt": ["é", [7, 8]]}) == [[0xA9C3], [7, 8]]
    assert len((await encode({"prompt": "x" * 64}))[0]) == 16
    assert await encode({"prompt": ""}) == [[]]


@pytest.mark.anyio
async def test_a_next_turn_only_appends() -> None:
    turn = {"role": "user", "content": "hello there, how are you?"}
    tools = [{"type": "function", "function": {"name": "f"}}]
    (first,) = await encode({"messages": [turn], "tools": tools}, Endpoint.CHAT)
    (later,) = await encode({"messages": [turn, turn], "tools": tools}, Endpoint.CHAT)
    # the last token of the first holds padding
    assert later[: len(first) - 1] == first[:-1]
    (other,) = await encode({"messages": [turn]}, Endpoint.CHAT)
    assert other[0] != first[0]


@pytest.mark.anyio
@pytest.mark.parametrize("body", [{}, {"prompt": "\ud800"}, {"prompt": [-1]}, {"prompt": [1, "x"]}])
async def test_no_bytes_of_what_makes_no_sense(body: dict[str, Any]) -> None:
    assert await encode(body) == []


@pytest.mark.anyio
async def test_lone_surrogates_in_a_chat() -> None:
    assert await encode({"messages": [{"role": "user", "content": "\ud800"}]}, Endpoint.CHAT) == []


def read_with(choice: EncoderChoice) -> str:
    assert isinstance(choice.encoder, LocalEncoder)
    return choice.encoder.library


def test_what_the_operator_names_comes_first(tmp_path: Path) -> None:
    choice = choose_encoder(tokenizer_path=str(TINY), model_path=str(tmp_path), engine=BytesEncoder)
    assert (choice.encoder.name, choice.encoder.exact) == ("local", True)
    assert choice.reason == f"local files at {TINY}, as configured; read with {read_with(choice)}"
    with pytest.raises(ConfigError, match="nowhere"):
        choose_encoder(tokenizer_path=str(tmp_path / "nowhere"), engine=BytesEncoder)


def test_then_the_engines_model_path() -> None:
    choice = choose_encoder(model_path=str(TINY), engine=BytesEncoder)
    assert choice.encoder.name == "local"
    assert choice.reason == f"local files at {TINY}, the engine's model path; read with {read_with(choice)}"


def test_then_the_engine(tmp_path: Path) -> None:
    engine = BytesEncoder()
    absent = choose_encoder(model_path="org/model", engine=lambda: engine)
    assert absent.encoder is engine
    assert absent.reason == "the engine's /tokenize: no tokenizer files at the engine's model path org/model"
    shutil.copytree(TINY, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    broken = choose_encoder(model_path=str(tmp_path / "broken"), engine=lambda: engine)
    assert broken.encoder is engine
    assert broken.reason.startswith("the engine's /tokenize: unusable files at the engine's model path: ")


def test_then_bytes() -> None:
    choice = choose_encoder()
    assert (choice.encoder.name, choice.encoder.exact) == ("bytes", False)
    assert (
        choice.reason == "bytes in place of tokens: the engine names no model path, and it has no /tokenize"
    )
