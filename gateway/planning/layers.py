"""Which layers of a model keep K/V, and how each kind keeps it."""

from __future__ import annotations

from collections import Counter

from gateway.errors import InvalidRequest
from gateway.planning.fields import Config
from gateway.planning.shape import AttentionLayers, LayerKv, RecurrentLayers

FULL, SLIDING, CHUNKED, LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4, "exaone4": 4}
"""Every n-th layer is a full one; the others slide. Those classes' defaults."""
_DELTA_NETS = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_LETTERS = {"L": SLIDING, "G": FULL}
"""EXAONE 4 spells its pattern: local and global."""
_INDEX_QUANT_BLOCK = 128
"""Index keys are fp8 with one float32 scale per so many elements."""


def attention_layers(
    config: Config, notes: list[str]
) -> tuple[tuple[AttentionLayers, ...], RecurrentLayers | None]:
    types = Counter(layer_types(config))
    recurrent = None
    if linear := types.pop(LINEAR, 0):
        recurrent = _recurrent(config, linear)
        notes.append("linear-attention state is counted a sequence; engines round it up to whole blocks")
    attention = []
    for kind, count in sorted(types.items()):
        if kind not in (FULL, SLIDING, CHUNKED):
            raise InvalidRequest(
                f"{config.name}: layer type {kind!r} is not known", param="config.layer_types"
            )
        attention.append(AttentionLayers(count, _layer_kv(config, kind)))
    if not attention:
        raise InvalidRequest(f"{config.name}: no layer keeps K/V, there is nothing to plan", param="model")
    return tuple(attention), recurrent


def layer_types(config: Config) -> list[str]:
    """One of the four kinds for each layer, from whichever field the family says it in."""
    layers = config.number("num_hidden_layers")
    listed = config.fields.get("layer_types")
    if isinstance(listed, list):
        return _each(config, "layer_types", [str(kind) for kind in listed])
    if sliding := config.numbers("hybrid_layer_pattern"):
        return _each(config, "hybrid_layer_pattern", [SLIDING if each else FULL for each in sliding])
    if kinds := config.numbers("attn_type_list"):
        # MiniMax-Text-01: lightning attention and softmax
        return _each(config, "attn_type_list", [FULL if each else LINEAR for each in kinds])
    if config.fields.get("linear_attn_config") is not None:
        # Kimi Linear counts its layers from 1
        full = config.part("linear_attn_config").numbers("full_attn_layers")
        return [FULL if i + 1 in full else LINEAR for i in range(layers)]
    if config.model_type in _DELTA_NETS:
        every = config.number("full_attention_interval", 4)
        return [LINEAR if (i + 1) % every else FULL for i in range(layers)]
    if config.first("attention_chunk_size"):
        return _chunked(config, layers)
    return _windowed(config, layers)


def _each(config: Config, key: str, kinds: list[str]) -> list[str]:
    layers = config.number("num_hidden_layers")
    if len(kinds) < layers:
        raise InvalidRequest(
            f"{config.name}: {key} names {len(kinds)} of {layers} layers", param=f"config.{key}"
        )
    return kinds[:layers]


def _chunked(config: Config, layers: int) -> list[str]:
    """Llama 4: layers with rotary positions see their own chunk, those without see everything."""
    rotary = config.numbers("no_rope_layers")
    if rotary:
        return _each(config, "no_rope_layers", [CHUNKED if each else FULL for each in rotary])
    every = config.number("no_rope_layer_interval", 4)
    return [CHUNKED if every == 0 or (i + 1) % every else FULL for i in range(layers)]


def _windowed(config: Config, layers: int) -> list[str]:
    window = config.first("sliding_window")
    if not window or window >= config.first("max_position_embeddings", default=window + 1):
        return [FULL] * layers
    pattern = config.fields.get("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set(_LETTERS):
            raise InvalidRequest(
                f"{config.name}: sliding_window_pattern {pattern!r} is not of L and G",
                param="config.sliding_window_pattern",
            )
        # the last layer sees everything, wherever the pattern ends
        return [*(_LETTERS[pattern[i % len(pattern)]] for i in range(layers - 1)), FULL]
    if config.model_type in _PATTERNS or pattern is not None:
        every = config.number("sliding_window_pattern", _PATTERNS.get(config.model_type))
        return [SLIDING if every == 0 or (i + 1) % every else FULL for i in range(layers)]
    if config.model_type.startswith("qwen"):
        # Qwen's configs name a window and switch it off
        first = config.number("max_window_layers", layers) if config.flag("use_sliding_window") else layers
        return [FULL if i < first else SLIDING for i in range(layers)]
    return [SLIDING] * layers


def _layer_kv(config: Config, kind: str) -> LayerKv:
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
    if kind == SLIDING:
        heads = config.first("swa_num_key_value_heads", default=heads)
        key_dim = config.first("swa_head_dim", default=key_dim)
        value_dim = config.first("swa_v_head_dim", default=value_dim)
    elif wide := config.first("global_head_dim"):
        key_dim = value_dim = wide
        heads = config.first("num_global_key_value_heads", default=heads)
    queries = config.number("num_attention_heads")
    if not 0 < heads <= queries or queries % heads:
        raise InvalidRequest(
            f"{config.name}: {heads} K/V heads for {queries} query heads", param="config.num_key_value_heads"
        )
    if key_dim == 0:
        raise InvalidRequest(f"{config.name}: heads of 0 elements", param="config.head_dim")
    if kind == FULL:
        return LayerKv(heads, key_dim, value_dim)
    window = config.number("sliding_window" if kind == SLIDING else "attention_chunk_size")
    return LayerKv(heads, key_dim, value_dim, window=window, chunked=kind == CHUNKED)


def _recurrent(config: Config, count: int) -> RecurrentLayers:
    """A state of fixed size: a short convolution over q, k and v where there is one, and a matrix a head."""
    if config.fields.get("linear_attn_config") is not None:
        linear = config.part("linear_attn_config")
        heads, dim = linear.number("num_heads"), linear.number("head_dim")
        conv = 3 * heads * dim * (linear.number("short_conv_kernel_size") - 1)
        return RecurrentLayers(count, conv_elements=conv, state_elements=heads * dim * dim)
    if config.fields.get("attn_type_list") is not None:
        heads, dim = config.number("num_attention_heads"), config.head_dim
        return RecurrentLayers(count, conv_elements=0, state_elements=heads * dim * dim, state_width=2)
    if config.fields.get("linear_num_key_heads") is None:
        raise InvalidRequest(
            f"{config.name}: the state of its linear-attention layers is not known", param="model"
        )
    key_heads, key_dim = config.number("linear_num_key_heads"), config.number("linear_key_head_dim")
    value_heads, value_dim = config.number("linear_num_value_heads"), config.number("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    # vLLM keeps the state as the config says, and in the model's own type where it says nothing
    says = config.fields.get("mamba_ssm_dtype", "float32" if "qwen3_5" in config.model_type else None)
    return RecurrentLayers(
        count=count,
        conv_elements=channels * (config.number("linear_conv_kernel_dim") - 1),
        state_elements=value_heads * value_dim * key_dim,
        state_width=4 if says == "float32" else 2,
    )
