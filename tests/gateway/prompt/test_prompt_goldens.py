"""Texts and token ids against vLLM, llama.cpp, SentencePiece and live engines (tests/data/prompts)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.prompt.base import Endpoint, PromptError
from gateway.prompt.files import TokenizerFiles
from gateway.prompt.local import LocalEncoder
from gateway.prompt.reader import read_prompt
from gateway.prompt.render import RenderOptions

DATA = Path(__file__).resolve().parents[2] / "data" / "prompts"


def goldens() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}: {case['name']}")
        for name in ("vllm-tiny", "vllm-tiny.tools", "vllm-tiny.parts", "smollm2", "mistral-v3")
        for case in json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    ]


@pytest.fixture(scope="module")
def encoders(tokenizers: dict[str, TokenizerFiles]) -> dict[str, LocalEncoder]:
    made = {name: LocalEncoder(files) for name, files in tokenizers.items()}
    for template in ("tools", "parts"):
        source = (DATA / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
        options = RenderOptions(chat_template=source)
        made[f"vllm-tiny.{template}"] = LocalEncoder(tokenizers["vllm-tiny"], options)
    return made


@pytest.mark.parametrize(("source", "case"), goldens())
def test_chat_becomes_the_engines_tokens(
    encoders: dict[str, LocalEncoder], source: str, case: dict[str, Any]
) -> None:
    encoder = encoders[source]
    request = read_prompt(Endpoint.CHAT, case["body"])
    if case.get("refused"):
        with pytest.raises(PromptError):
            encoder.tokenise(request)
        return
    assert encoder.texts(request) == [case["text"]]
    (prompt,) = encoder.tokenise(request)
    assert list(prompt.tokens) == case["ids"]
    assert prompt.exact_tokens == len(case["ids"])


@pytest.mark.parametrize(
    "case",
    json.loads((DATA / "vllm_captures.json").read_text(encoding="utf-8")),
    ids=lambda case: case["name"],
)
def test_live_engines_reported_these_ids(encoders: dict[str, LocalEncoder], case: dict[str, Any]) -> None:
    endpoint = Endpoint.CHAT if "messages" in case["body"] else Endpoint.COMPLETIONS
    (prompt,) = encoders["vllm-tiny"].tokenise(read_prompt(endpoint, case["body"]))
    assert list(prompt.tokens) == case["ids"]
