"""The tables: published parameter counts against a recount from the fields, and names."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.planning.catalog import Catalog
from gateway.planning.config import shape_from_config
from gateway.planning.shape import AttentionKind

CATALOG = Catalog.builtin()


@pytest.mark.parametrize("entry", CATALOG.models, ids=lambda entry: entry.name)
def test_weights_recounted_from_the_config_are_those_published(entry) -> None:  # type: ignore[no-untyped-def]
    shape = entry.shape()
    if entry.parameters is not None:
        assert shape.parameters.total == entry.parameters


@pytest.mark.parametrize(
    ("model", "total"),
    [("gemma-3-4b", 3_880_099_328), ("gemma-3-12b", 11_765_788_416), ("gemma-3-27b", 27_009_002_240)],
)
def test_gemma_3_text_models_as_keras_hub_counts_them(model: str, total: int) -> None:
    """KerasHub's presets have a vocabulary of 262,144, the published configs 262,208."""
    config = {**CATALOG.model(model).config, "vocab_size": 262_144}
    assert shape_from_config(config, name=model, source="").parameters.total == total


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        # without the tables, as the model cards count what a token activates
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22.2),
        ("deepseek-v3", 37.6),
        ("kimi-k2", 32.9),
        ("gpt-oss-120b", 5.8),
        ("mixtral-8x7b", 12.9),
        ("llama-4-scout", 17.2),
        ("qwen3-next-80b-a3b", 3.9),
    ],
)
def test_active_weights(model: str, billions: float) -> None:
    assert CATALOG.model(model).shape().parameters.active / 1e9 == pytest.approx(billions, abs=0.06)


@pytest.mark.parametrize(
    ("model", "rounded"),
    [
        ("qwen3.5-27b", 27e9),
        ("kimi-k2", 1.03e12),
        ("deepseek-v3.2", 672e9),
        ("qwen3-next-80b-a3b", 80e9),
        ("glm-4.5", 355e9),
        ("glm-4.5-air", 106e9),
        ("llama-4-maverick", 400e9),
    ],
)
def test_models_published_with_a_rounded_count(model: str, rounded: float) -> None:
    assert CATALOG.model(model).shape().parameters.total == pytest.approx(rounded, rel=0.01)


def test_every_way_of_sharing_heads_is_there() -> None:
    kinds = {entry.name: entry.shape().kind for entry in CATALOG.models}
    assert kinds["llama-2-7b"] is AttentionKind.MHA
    assert kinds["qwen2-7b"] is AttentionKind.GQA
    assert kinds["gemma-3-1b"] is AttentionKind.MQA
    assert kinds["deepseek-v3"] is AttentionKind.MLA


def test_every_entry_has_a_source_and_a_name_of_its_own() -> None:
    for entries in (CATALOG.models, CATALOG.gpus):
        names = [name for entry in entries for name in (entry.name, *entry.aliases)]
        assert len(names) == len(set(names))
        assert all(entry.source for entry in entries)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Qwen/Qwen2-7B-Instruct", "qwen2-7b"),
        ("QWEN2_7B", "qwen2-7b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "deepseek-r1-distill-llama-8b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistral-small-3.2"),
    ],
)
def test_names_are_read_leniently(said: str, meant: str) -> None:
    assert CATALOG.model(said).name == meant


@pytest.mark.parametrize(("said", "meant"), [("H100", "h100"), ("NVIDIA L4", "l4"), ("A100-80", "a100-80")])
def test_gpu_names_are_read_leniently(said: str, meant: str) -> None:
    assert CATALOG.gpu(said).name == meant


def test_unknown_names_get_the_closest_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"no model 'qwen2-8b'.*qwen2-7b"):
        CATALOG.model("qwen2-8b")
    with pytest.raises(InvalidRequest, match=r"no GPU 'h300'.*h[12]00"):
        CATALOG.gpu("h300")
    with pytest.raises(InvalidRequest, match=r"no scenario 'chatt'.*chat"):
        CATALOG.scenario("chatt")
