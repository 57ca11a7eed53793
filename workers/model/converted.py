"""Converted weights kept on disk: a GGUF is read and dequantised once, afterwards it is mapped in a moment.

Several workers on one machine map the same pages, so the float32 weights are in memory once.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
from safetensors.numpy import save_file

from workers.model.config import ModelConfig
from workers.model.errors import ModelFilesInvalid
from workers.model.safetensors_file import SafetensorsFile
from workers.model.weights import Weights, weights_from_tensors

log = logging.getLogger(__name__)

FORMAT = "1"
"""Raise it whenever the layout of Weights or the meaning of ModelConfig changes."""

Convert = Callable[[Path], tuple[ModelConfig, Weights]]


def load_converted(source: Path, cache_dir: Path, convert: Convert) -> tuple[ModelConfig, Weights]:
    """What `convert(source)` returns, from `cache_dir` when it was converted before and hasn't changed since.

    Of several processes one converts, the others wait for it. Where the cache can't be written, weights
    simply stay in this process's memory.
    """
    stat = source.stat()
    stamp = f"{FORMAT} {stat.st_size} {stat.st_mtime_ns}"
    digest = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    target = cache_dir / f"{source.stem}-{digest}.safetensors"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := _read(target, stamp)) is not None:
                return found
            log.info("converting %s to float32, once", source)
            config, weights = convert(source)
            _write(target, stamp, config, weights)
        return _read(target, stamp) or (config, weights)
    except OSError as error:
        log.warning("converted weights can't be kept in %s (%s): converting at every start", cache_dir, error)
        return convert(source)


def _read(path: Path, stamp: str) -> tuple[ModelConfig, Weights] | None:
    if not path.is_file():
        return None
    try:
        file = SafetensorsFile(path)
        if file.metadata.get("stamp") != stamp:
            return None
        config = msgspec.json.decode(file.metadata["config"], type=ModelConfig)
        tensors = {name: tensor for name in file.names if (tensor := file.read(name)) is not None}
        return config, weights_from_tensors(tensors, config.num_layers)
    except (ModelFilesInvalid, msgspec.MsgspecError, KeyError) as error:
        log.warning("%s is damaged (%s): converting again", path, error)
        return None


def _write(path: Path, stamp: str, config: ModelConfig, weights: Weights) -> None:
    """Appears whole or not at all. Under the lock nobody else writes the partial file."""
    metadata = {"stamp": stamp, "config": msgspec.json.encode(config).decode()}
    partial = path.with_suffix(".partial")
    save_file(dict(weights.tensors()), partial, metadata=metadata)
    partial.replace(path)
