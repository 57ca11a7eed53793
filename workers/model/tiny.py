"""A tiny model with random weights, for tests and for a look round: it answers at once, in gibberish.

Written as a Hugging Face folder, the same bytes for the same spec, so that every worker on every machine that
makes it has the same one.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from safetensors.numpy import save_file

from workers.model.rope import F32

VERSION = 1
"""Raise it whenever the same spec gives other files: folders of older versions are then left alone."""
VOCAB_SIZE = 1024
END_OF_TEXT, IM_END = 0, 2
"""Ids in data/tiny_tokenizer.json, a byte-level BPE."""


@dataclass(frozen=True, slots=True)
class TinySpec:
    """Llama: grouped heads, a head of its own. Qwen2: biases on Q, K and V, the head tied."""

    flavour: Literal["llama", "qwen2"] = "llama"
    seed: int = 0
    hidden_size: int = 64
    intermediate_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    max_position_embeddings: int = 8192

    @property
    def folder_name(self) -> str:
        sizes = (self.hidden_size, self.intermediate_size, self.num_layers, self.num_heads, self.num_kv_heads)
        shape = "x".join(map(str, sizes))
        return f"tiny-{self.flavour}-v{VERSION}-{shape}-{self.max_position_embeddings}-seed{self.seed}"


def ensure_tiny(parent: Path, spec: TinySpec | None = None) -> Path:
    """The model's folder inside `parent`, made where it isn't there yet. Safe for several processes at once:
    the folder appears whole. Raises OSError where it can't be written."""
    spec = spec or TinySpec()
    target = parent / spec.folder_name
    if target.is_dir():
        return target
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".tiny-") as scratch:
        made = Path(scratch) / spec.folder_name
        write_tiny(made, spec)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster, with the same bytes
                raise
    return target


def write_tiny(folder: Path, spec: TinySpec) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(_json(_config(spec)))
    (folder / "generation_config.json").write_bytes(_json({"eos_token_id": [IM_END, END_OF_TEXT]}))
    (folder / "tokenizer_config.json").write_bytes(_json(_tokenizer_config(spec)))
    data = resources.files("workers.model") / "data"
    for name in ("tokenizer.json", "chat_template.jinja"):
        with (data / f"tiny_{name}").open("rb") as source, (folder / name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
    save_file(random_tensors(spec), folder / "model.safetensors", metadata={"format": "pt"})


def random_tensors(spec: TinySpec) -> dict[str, F32]:
    """Scaled so that attention is neither flat nor fixed on one token, and the logits spread by about 2."""
    # RandomState's stream is frozen for good (NEP 19); that of a Generator may change with NumPy
    rng = np.random.RandomState(spec.seed)
    hidden, inter = spec.hidden_size, spec.intermediate_size
    head_dim = hidden // spec.num_heads
    kv = spec.num_kv_heads * head_dim

    def normal(scale: float, *shape: int) -> F32:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def matrix(out: int, inner: int) -> F32:
        return normal(1.5 / inner**0.5, out, inner)

    def norm() -> F32:
        return 1 + normal(0.1, hidden)

    qwen2 = spec.flavour == "qwen2"
    tensors = {"model.embed_tokens.weight": normal(2 / hidden**0.5 if qwen2 else 1.0, VOCAB_SIZE, hidden)}
    for i in range(spec.num_layers):
        layer = f"model.layers.{i}"
        tensors[f"{layer}.input_layernorm.weight"] = norm()
        tensors[f"{layer}.post_attention_layernorm.weight"] = norm()
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            tensors[f"{layer}.self_attn.{name}_proj.weight"] = matrix(rows, hidden)
            if qwen2:
                tensors[f"{layer}.self_attn.{name}_proj.bias"] = normal(0.5, rows)
        tensors[f"{layer}.self_attn.o_proj.weight"] = matrix(hidden, hidden)
        tensors[f"{layer}.mlp.gate_proj.weight"] = matrix(inter, hidden)
        tensors[f"{layer}.mlp.up_proj.weight"] = matrix(inter, hidden)
        tensors[f"{layer}.mlp.down_proj.weight"] = matrix(hidden, inter)
    tensors["model.norm.weight"] = norm()
    if not qwen2:
        tensors["lm_head.weight"] = normal(2 / hidden**0.5, VOCAB_SIZE, hidden)
    return tensors


def _config(spec: TinySpec) -> dict[str, Any]:
    llama = spec.flavour == "llama"
    return {
        "architectures": ["LlamaForCausalLM" if llama else "Qwen2ForCausalLM"],
        "model_type": spec.flavour,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": not llama,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": IM_END,
        "torch_dtype": "float32",
    }


def _tokenizer_config(spec: TinySpec) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.max_position_embeddings,
    }


def _json(value: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
