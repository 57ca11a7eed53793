"""A model, ready to compute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workers.model.config import ModelConfig
from workers.model.weights import Weights


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    name: str
    """What it is called when nobody says otherwise: ``smollm2``, ``tiny``, or the folder's or file's name."""
    config: ModelConfig
    weights: Weights
    tokenizer_source: Path
    """The Hugging Face folder or the GGUF file: its tokenizer and chat template are in there."""
