"""Where a model's shape comes from: the table, a given config, a config.json, a folder, a GGUF file."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.errors import InvalidRequest
from gateway.planning.catalog import Catalog, weights_of
from gateway.planning.config import shape_from_config
from gateway.planning.gguf import shape_from_gguf
from gateway.planning.request import PlanRequest
from gateway.planning.shape import ModelShape


def resolve_model(request: PlanRequest, catalog: Catalog, *, read_files: bool) -> ModelShape:
    """A path wins over a name where files may be read and it exists."""
    if request.config is not None:
        return shape_from_config(request.config, name=_name(request.config), source="config given")
    if read_files:
        path = Path(request.model)
        if path.exists():
            return shape_from_path(path)
        if path.suffix in (".json", ".gguf") or request.model.startswith((".", "/", "~")):
            raise InvalidRequest(f"no file {request.model}", param="model")
    shape = catalog.model(request.model).shape()
    quantised = weights_of(request.model)
    if "/" in request.model:
        # a repository: that is what the engine is to load
        source = f"https://huggingface.co/{request.model}"
        return replace(shape, name=request.model, checkpoint=quantised or shape.checkpoint, source=source)
    return replace(shape, name=request.model) if quantised else shape


def shape_from_path(path: Path) -> ModelShape:
    if path.is_dir():
        if (path / "config.json").is_file():
            return _from_config(path / "config.json", weights_bytes=_safetensors_bytes(path))
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return shape_from_gguf(files[0])
        raise InvalidRequest(f"{path} has no config.json and not exactly one GGUF file", param="model")
    if path.suffix == ".gguf":
        return shape_from_gguf(path)
    return _from_config(path, weights_bytes=None)


def _from_config(path: Path, *, weights_bytes: int | None) -> ModelShape:
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, OSError) as error:
        raise InvalidRequest(f"{path} is not a config.json: {error}", param="model") from error
    name = _name(fields) or path.resolve().parent.name
    return shape_from_config(fields, name=name, source=str(path), weights_bytes=weights_bytes)


def _name(fields: dict[str, Any]) -> str:
    return str(fields.get("_name_or_path") or fields.get("name") or fields.get("model_type") or "model")


def _safetensors_bytes(folder: Path) -> int | None:
    """Bytes of all tensors beside a config.json, their headers not counted; None where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    total = 0
    for file in files:
        with file.open("rb") as opened:
            prefix = opened.read(8)
        if len(prefix) < 8:
            raise InvalidRequest(f"{file} is not a safetensors file", param="model")
        header = struct.unpack("<Q", prefix)[0]
        total += file.stat().st_size - 8 - header
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        # the index knows the whole size also where only a part of the files was downloaded
        declared = json.loads(index.read_bytes()).get("metadata", {}).get("total_size")
        total = int(declared) if isinstance(declared, int | float) else total
    return total or None
