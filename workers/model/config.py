"""The shape of a model, whatever file it came from, and which shapes this engine computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from workers.model.errors import ModelFilesInvalid, UnsupportedModel
from workers.model.rope import RopeConfig

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "mistral": "MistralForCausalLM"}
SUPPORTED = "supported: Llama, Mistral and Qwen2 decoders (config.json) and GGUF of arch llama or qwen2"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in elements. Attention is MHA, GQA or MQA as `num_kv_heads` is `num_heads`, between, or 1."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """Longest sequence, in tokens. With sliding-window attention it's the window: within it, the window
    changes nothing, and beyond it this engine would compute something else than the model."""
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()  # noqa: RUF009 - frozen
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in _POSITIVE}
        if bad := [f"{name}={size}" for name, size in sizes.items() if size < 1]:
            raise ModelFilesInvalid(f"sizes must be positive: {', '.join(bad)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelFilesInvalid(
                f"{self.num_heads} attention heads can't be shared evenly by {self.num_kv_heads} K/V heads"
            )
        if self.head_dim % 2:
            raise ModelFilesInvalid(f"rotary embedding needs an even head size, not {self.head_dim}")


_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)


class HfConfig(msgspec.Struct):
    """The fields of Hugging Face's config.json that decide the arithmetic."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    quantization_config: dict[str, Any] | None = None
    eos_token_id: int | list[int] | None = None


class _ModelType(msgspec.Struct):
    model_type: str = ""
    architectures: list[str] | None = None


def parse_hf_config(data: bytes) -> ModelConfig:
    """`data` is the text of a config.json. Raises UnsupportedModel, ModelFilesInvalid."""
    try:
        kind = msgspec.json.decode(data, type=_ModelType)
        if kind.model_type not in ARCHITECTURES:
            named = kind.model_type or ", ".join(kind.architectures or ()) or "unnamed"
            raise UnsupportedModel(f"model type {named!r} is not supported; {SUPPORTED}")
        hf = msgspec.json.decode(data, type=HfConfig)
    except msgspec.MsgspecError as error:
        raise ModelFilesInvalid(f"config.json: {error}") from error
    _refuse_what_is_not_computed(hf)
    return ModelConfig(
        model_type=hf.model_type,
        vocab_size=hf.vocab_size,
        hidden_size=hf.hidden_size,
        intermediate_size=hf.intermediate_size,
        num_layers=hf.num_hidden_layers,
        num_heads=hf.num_attention_heads,
        num_kv_heads=hf.num_key_value_heads or hf.num_attention_heads,
        head_dim=hf.head_dim or hf.hidden_size // max(hf.num_attention_heads, 1),
        max_position_embeddings=_longest_sequence(hf),
        rms_norm_eps=hf.rms_norm_eps,
        rope=parse_rope(hf.rope_parameters or hf.rope_scaling or {}, hf.rope_theta),
        tie_word_embeddings=hf.tie_word_embeddings,
        qkv_bias=hf.model_type == "qwen2" or hf.attention_bias,
        o_bias=hf.model_type == "llama" and hf.attention_bias,
        mlp_bias=hf.model_type == "llama" and hf.mlp_bias,
        eos_token_ids=token_id_set(hf.eos_token_id),
    )


def token_id_set(value: int | list[int] | None) -> frozenset[int]:
    return frozenset([value] if isinstance(value, int) else value or ())


_ROPE_KINDS: dict[str, Literal["default", "linear", "llama3"]] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
}


def parse_rope(parameters: dict[str, Any], theta: float | None) -> RopeConfig:
    """Reads both forms: `rope_theta` beside `rope_scaling`, and `rope_parameters`, newer, that holds all."""
    named = parameters.get("rope_type") or parameters.get("type") or "default"
    kind = _ROPE_KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise UnsupportedModel(f"rope scaling {named!r} is not supported; supported: default, linear, llama3")
    base = RopeConfig()
    try:
        return RopeConfig(
            theta=float(parameters.get("rope_theta") or theta or base.theta),
            kind=kind,
            factor=float(parameters.get("factor", base.factor)),
            low_freq_factor=float(parameters.get("low_freq_factor", base.low_freq_factor)),
            high_freq_factor=float(parameters.get("high_freq_factor", base.high_freq_factor)),
            original_max_position=int(
                parameters.get("original_max_position_embeddings", base.original_max_position)
            ),
        )
    except (TypeError, ValueError) as error:
        raise ModelFilesInvalid(f"config.json: rope parameters {parameters}: {error}") from error


def _refuse_what_is_not_computed(hf: HfConfig) -> None:
    if hf.hidden_act not in ("silu", "swish"):
        raise UnsupportedModel(f"activation {hf.hidden_act!r} is not supported; supported: silu (SwiGLU)")
    if hf.quantization_config is not None:
        method = hf.quantization_config.get("quant_method", "of unknown method")
        raise UnsupportedModel(
            f"quantised Hugging Face checkpoints ({method}) are not supported: take the float32, float16 or "
            "bfloat16 weights, or a GGUF file"
        )
    rotary = (hf.rope_parameters or {}).get("partial_rotary_factor") or hf.partial_rotary_factor
    if rotary not in (None, 1, 1.0):
        raise UnsupportedModel(f"partial rotary embedding (factor {rotary}) is not supported")


def _longest_sequence(hf: HfConfig) -> int:
    slides = hf.model_type == "mistral" or (hf.model_type == "qwen2" and hf.use_sliding_window)
    if slides and hf.sliding_window:
        return min(hf.max_position_embeddings, hf.sliding_window)
    return hf.max_position_embeddings
