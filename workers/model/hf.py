"""Loads a Hugging Face model folder: config.json, *.safetensors (also sharded), generation_config.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from workers.model.config import ModelConfig, parse_hf_config, token_id_set
from workers.model.errors import ModelFilesInvalid, ModelNotAvailable
from workers.model.loaded import LoadedModel
from workers.model.rope import F32
from workers.model.safetensors_file import SafetensorsFile
from workers.model.weights import TensorSource, assemble


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def load_hf(folder: Path, name: str | None = None) -> LoadedModel:
    """Raises ModelError and its kinds."""
    config = load_hf_config(folder)
    weights = assemble(config, _tensor_source(folder))
    return LoadedModel(name or folder.resolve().name, config, weights, folder)


def load_hf_config(folder: Path) -> ModelConfig:
    """The end-of-sequence tokens of config.json and of generation_config.json both end a sequence."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotAvailable(f"{folder} has no config.json: it must be a Hugging Face model folder")
    config = parse_hf_config(path.read_bytes())
    generation = folder / "generation_config.json"
    if not generation.is_file():
        return config
    try:
        more = msgspec.json.decode(generation.read_bytes(), type=_GenerationConfig)
    except msgspec.MsgspecError as error:
        raise ModelFilesInvalid(f"{generation}: {error}") from error
    return replace(config, eos_token_ids=config.eos_token_ids | token_id_set(more.eos_token_id))


def _tensor_source(folder: Path) -> TensorSource:
    files = [SafetensorsFile(path) for path in _weight_files(folder)]
    owner = {name: file for file in files for name in file.names}

    def read(name: str) -> F32 | None:
        return owner[name].read(name) if name in owner else None

    return read


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(msgspec.json.decode(index.read_bytes(), type=_ShardIndex).weight_map.values())
        except msgspec.MsgspecError as error:
            raise ModelFilesInvalid(f"{index}: {error}") from error
        paths = [folder / shard for shard in sorted(shards)]
        if absent := [path.name for path in paths if path.parent != folder or not path.is_file()]:
            raise ModelFilesInvalid(f"{folder} lacks shards that its index names: {', '.join(absent)}")
        return paths
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelNotAvailable(
            f"{folder} has no *.safetensors: other weight formats must be converted first"
        )
    return paths
