"""Tiny models, made once a session, and a hand to feed them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from workers.model.hf import load_hf
from workers.model.loaded import LoadedModel
from workers.model.runner import NumpyRunner
from workers.model.tiny import TinySpec, ensure_tiny
from workers.types import SamplingParams, StepItem

Feed = Callable[..., npt.NDArray[np.float32]]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny(tmp_path_factory.mktemp("tiny"), TinySpec(flavour="qwen2"))


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def tiny(request: pytest.FixtureRequest, tiny_folder: Path, tiny_qwen2_folder: Path) -> LoadedModel:
    return load_hf(tiny_folder if request.param == "llama" else tiny_qwen2_folder)


@pytest.fixture(scope="session")
def item() -> Callable[..., StepItem]:
    """A step item that samples greedily after its last token."""

    def make(tokens: Sequence[int], start: int, table: Sequence[int], **changes: object) -> StepItem:
        fields: dict[str, object] = {"samples": True, "sampling": SamplingParams(temperature=0)} | changes
        return StepItem("r", tokens=tokens, start=start, block_table=table, **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def feed(item: Callable[..., StepItem]) -> Feed:
    """Feeds one sequence's tokens; the logits after the last of them."""

    def run(
        runner: NumpyRunner, tokens: Sequence[int], start: int, table: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        return runner.logits([item(tokens, start, table)])[0]

    return run
