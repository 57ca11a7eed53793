"""Reads a Hugging Face config.json into a ModelShape.

A field that is absent takes the default that the model's own class has. What cannot be counted right is
refused by name, rather than counted wrongly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.planning.parameters import count_parameters
from gateway.planning.shape import AttentionLayers, LayerKv, ModelShape, RecurrentLayers

_REFUSED = ("mamba_d_state", "ssm_state_size", "hybrid_override_pattern", "mamba_config", "compress_ratios")
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
"""Every n-th layer is a full one; the others slide. Those classes' defaults."""
_LINEAR = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
MOST_LAYERS = 10_000
_INDEX_QUANT_BLOCK = 128
"""Index keys are fp8 with one float32 scale per so many elements."""


class Config:
    """Typed access to the fields, with errors that name the field."""

    def __init__(self, fields: Mapping[str, Any], name: str) -> None:
        self.fields = fields
        self.name = name

    def number(self, key: str, default: int | None = None) -> int:
        value = self.fields.get(key)
        if value is None:
            if default is None:
                raise InvalidRequest(f"{self.name}: config has no {key}", param=f"config.{key}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequest(
                f"{self.name}: config's {key} is {value!r}, not a whole number", param=f"config.{key}"
            )
        return value

    def first(self, *keys: str, default: int = 0) -> int:
        """The first of `keys` that the config has."""
        return next((self.number(key) for key in keys if self.fields.get(key) is not None), default)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.fields.get(key)
        return default if value is None else bool(value)

    @property
    def model_type(self) -> str:
        return str(self.fields.get("model_type", ""))

    @property
    def tied(self) -> bool:
        return self.flag("tie_word_embeddings", self.model_type.startswith("gemma"))

    @property
    def head_dim(self) -> int:
        heads = self.number("num_attention_heads")
        return self.number("head_dim", self.number("hidden_size") // max(1, heads))


def shape_from_config(
    fields: Mapping[str, Any], *, name: str, source: str, weights_bytes: int | None = None
) -> ModelShape:
    """Raises InvalidRequest for a config that is incomplete, or of a kind whose cache is not counted here."""
    notes: list[str] = []
    text = fields.get("text_config")
    if isinstance(text, Mapping):
        notes.append("multimodal: weights of its vision or audio part are not counted")
        fields = {"tie_word_embeddings": fields.get("tie_word_embeddings"), **text} | {
            key: fields[key] for key in ("quantization_config",) if key in fields
        }
    config = Config(fields, name)
    _refuse(config)
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if config.number(key) == 0:
            raise InvalidRequest(f"{name}: config's {key} is 0", param=f"config.{key}")
    if config.number("num_hidden_layers") > MOST_LAYERS:
        raise InvalidRequest(f"{name}: more than {MOST_LAYERS} layers", param="config.num_hidden_layers")
    experts = config.first("num_local_experts", "num_experts", "n_routed_experts")
    chosen = config.first("num_experts_per_tok", "experts_per_token", "top_k_experts")
    if chosen > experts > 0:
        raise InvalidRequest(f"{name}: {chosen} experts a token of {experts}", param="config")
    attention, recurrent = _layers(config, notes)
    latent = config.first("kv_lora_rank") > 0
    if latent:
        score = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
        mix = config.number("v_head_dim")
    else:
        score, mix = config.head_dim, config.number("v_head_dim", config.head_dim)
    parameters, mlp_width = count_parameters(config)
    return ModelShape(
        name=name,
        source=source,
        layers=config.number("num_hidden_layers"),
        hidden=config.number("hidden_size"),
        heads=config.number("num_attention_heads"),
        score_dim=score,
        mix_dim=mix,
        vocabulary=config.number("vocab_size"),
        mlp_width=mlp_width,
        max_positions=config.first("max_position_embeddings") or None,
        attention=attention,
        recurrent=recurrent,
        parameters=parameters,
        checkpoint=_checkpoint(fields),
        experts_total=experts,
        experts_per_token=chosen,
        weights_bytes=weights_bytes,
        notes=tuple(notes),
    )


def _refuse(config: Config) -> None:
    if config.flag("is_encoder_decoder"):
        raise InvalidRequest(f"{config.name}: encoder-decoder models are not planned for", param="model")
    for key in _REFUSED:
        if config.fields.get(key) is not None:
            raise InvalidRequest(
                f"{config.name}: its config has {key}: state-space and compressed caches are not counted",
                param=f"config.{key}",
            )


def _layers(config: Config, notes: list[str]) -> tuple[tuple[AttentionLayers, ...], RecurrentLayers | None]:
    types = Counter(_layer_types(config))
    if types.pop("chunked_attention", 0) or config.fields.get("attention_chunk_size"):
        types["full_attention"] = types["full_attention"] or config.number("num_hidden_layers")
        notes.append("chunked attention layers are counted as full: engines keep all of their K/V")
    recurrent = None
    if linear := types.pop("linear_attention", 0):
        recurrent = _recurrent(config, linear)
        notes.append("linear-attention state is counted a sequence; engines round it up to whole blocks")
    attention = []
    for kind, count in sorted(types.items()):
        if kind not in ("full_attention", "sliding_attention"):
            raise InvalidRequest(
                f"{config.name}: layer type {kind!r} is not known", param="config.layer_types"
            )
        if count:
            attention.append(AttentionLayers(count, _layer_kv(config, sliding=kind == "sliding_attention")))
    if not attention:
        raise InvalidRequest(f"{config.name}: no layer keeps K/V, there is nothing to plan", param="model")
    return tuple(attention), recurrent


def _layer_types(config: Config) -> list[str]:
    layers = config.number("num_hidden_layers")
    listed = config.fields.get("layer_types")
    if isinstance(listed, list):
        return [str(kind) for kind in listed[:layers]]
    pattern = config.fields.get("hybrid_layer_pattern")
    if isinstance(pattern, list):
        return ["sliding_attention" if sliding else "full_attention" for sliding in pattern[:layers]]
    if config.model_type in _LINEAR:
        every = config.number("full_attention_interval", 4)
        return ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    window = config.first("sliding_window")
    if not window or window >= config.first("max_position_embeddings", default=window + 1):
        return ["full_attention"] * layers
    if config.model_type in _PATTERNS:
        every = config.number("sliding_window_pattern", _PATTERNS[config.model_type])
        return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    if config.model_type.startswith("qwen"):
        # Qwen's configs name a window and switch it off
        first = config.number("max_window_layers", layers) if config.flag("use_sliding_window") else layers
        return ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return ["sliding_attention"] * layers


def _layer_kv(config: Config, *, sliding: bool) -> LayerKv:
    if rank := config.first("kv_lora_rank"):
        index = config.first("index_head_dim")
        return LayerKv(
            kv_heads=1,
            key_dim=rank + config.number("qk_rope_head_dim"),
            value_dim=0,
            latent=True,
            index_bytes=index + 4 * (index // _INDEX_QUANT_BLOCK),
        )
    heads = config.first("num_key_value_heads", default=config.number("num_attention_heads"))
    key_dim, value_dim = config.head_dim, config.number("v_head_dim", config.head_dim)
    if sliding:
        heads = config.first("swa_num_key_value_heads", default=heads)
        key_dim = config.first("swa_head_dim", default=key_dim)
        value_dim = config.first("swa_v_head_dim", default=value_dim)
    elif wide := config.first("global_head_dim"):
        key_dim = value_dim = wide
        heads = config.first("num_global_key_value_heads", default=heads)
    if not 0 < heads <= config.number("num_attention_heads"):
        raise InvalidRequest(
            f"{config.name}: {heads} K/V heads for {config.number('num_attention_heads')} query heads",
            param="config.num_key_value_heads",
        )
    if key_dim == 0:
        raise InvalidRequest(f"{config.name}: heads of 0 elements", param="config.head_dim")
    return LayerKv(heads, key_dim, value_dim, window=config.number("sliding_window") if sliding else None)


def _recurrent(config: Config, count: int) -> RecurrentLayers:
    """Gated delta net: a short convolution over q, k, v and one matrix a value head."""
    key_heads, key_dim = config.number("linear_num_key_heads"), config.number("linear_key_head_dim")
    value_heads, value_dim = config.number("linear_num_value_heads"), config.number("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return RecurrentLayers(
        count=count,
        conv_elements=channels * (config.number("linear_conv_kernel_dim") - 1),
        state_elements=value_heads * value_dim * key_dim,
    )


def _checkpoint(fields: Mapping[str, Any]) -> str:
    """Name in precision.WEIGHTS of what the published files hold."""
    quantization = fields.get("quantization_config")
    if isinstance(quantization, Mapping):
        method = str(quantization.get("quant_method", "")).lower()
        algorithm = f"{method} {quantization.get('quant_algo', '')} {quantization.get('format', '')}".lower()
        for mark in ("mxfp4", "nvfp4", "fp8"):
            if mark in algorithm or (mark == "fp8" and "float-quantized" in algorithm):
                return mark
        if quantization.get("load_in_4bit") or quantization.get("bits") == 4 or "awq" in algorithm:
            return "int4"
        if quantization.get("load_in_8bit") or quantization.get("bits") == 8 or "int-quantized" in algorithm:
            return "int8"
        if "pack-quantized" in algorithm:
            return "int4"
    dtype = str(fields.get("dtype") or fields.get("torch_dtype") or "bf16").removeprefix("torch.")
    return {"float16": "fp16"}.get(dtype, "bf16")
