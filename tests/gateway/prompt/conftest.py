"""Real tokenizers, read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.prompt.files import TokenizerFiles, load_tokenizer_files

DATA = Path(__file__).resolve().parents[2] / "data"
SOURCES = {
    "vllm-tiny": "vllm-tiny",
    "smollm2": "smollm2/smollm2-vocabulary.gguf",
    "mistral-v3": "mistral-v3/mistral-v3-vocabulary.gguf",
}


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, TokenizerFiles]:
    return {name: load_tokenizer_files(DATA / "tokenizers" / path) for name, path in SOURCES.items()}


@pytest.fixture
def tiny(tokenizers: dict[str, TokenizerFiles]) -> TokenizerFiles:
    return tokenizers["vllm-tiny"]
