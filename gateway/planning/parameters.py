"""Counts a model's weights from its config, so that any config.json can be planned for.

The counts agree exactly with those published for the models of the built-in table (its tests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.planning.shape import Parameters

if TYPE_CHECKING:
    from gateway.planning.config import Config

_QKV_BIAS = ("qwen2", "qwen2_moe")
_QK_NORM = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text", "gemma4_text", *("qwen3_next", "qwen3_5_text"))
_FOUR_NORMS = ("gemma2", "gemma3", "gemma3_text", "gemma4_text")


def count_parameters(config: Config) -> tuple[Parameters, int]:
    """The weights, and the MLP width (intermediate elements) that one token passes through."""
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    table = config.number("vocab_size") * hidden
    attention, attention_other = _attention(config)
    norms = (4 if config.model_type in _FOUR_NORMS else 2) * hidden
    dense, experts, active, other, width = _mlp(config)
    return (
        Parameters(
            embedding=table,
            head=0 if config.tied else table,
            dense=attention + dense,
            experts=experts,
            active_experts=active,
            other=attention_other + other + layers * norms + hidden,
        ),
        width,
    )


def _attention(config: Config) -> tuple[int, int]:
    """(projections, biases and norms) of all layers."""
    layers = config.number("num_hidden_layers")
    if config.model_type.startswith(("qwen3_next", "qwen3_5")):
        full = layers // config.number("full_attention_interval", 4)
        projections, other = _grouped(config)
        linear, linear_other = _linear(config)
        return (
            full * projections + (layers - full) * linear,
            full * other + (layers - full) * linear_other,
        )
    projections, other = _latent(config) if config.first("kv_lora_rank") else _grouped(config)
    return layers * projections, layers * other


def _grouped(config: Config) -> tuple[int, int]:
    hidden, heads, dim = config.number("hidden_size"), config.number("num_attention_heads"), config.head_dim
    kv_heads = config.first("num_key_value_heads", default=heads)
    value_dim = config.number("v_head_dim", dim)
    queries, keys, values = heads * dim, kv_heads * dim, kv_heads * value_dim
    gated = 2 if config.flag("attn_output_gate") or config.model_type == "qwen3_next" else 1
    other = 0
    if config.model_type in _QKV_BIAS or config.flag("attention_bias"):
        other += queries + keys + values
    if config.flag("attention_bias"):
        other += hidden
    if config.model_type in _QK_NORM or config.model_type.startswith("qwen3_5"):
        other += 2 * dim
    if config.model_type == "gpt_oss":
        other += heads  # one learned sink a head
    return hidden * (gated * queries + keys + values) + heads * value_dim * hidden, other


def _latent(config: Config) -> tuple[int, int]:
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    rank, rope = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    nope, value_dim = config.number("qk_nope_head_dim"), config.number("v_head_dim")
    query_rank = config.first("q_lora_rank")
    queries = heads * (nope + rope)
    down = hidden * query_rank + query_rank * queries if query_rank else hidden * queries
    cache = hidden * (rank + rope) + rank * heads * (nope + value_dim)
    index = 0
    if index_heads := config.first("index_n_heads"):
        index_dim = config.number("index_head_dim")
        index = query_rank * index_heads * index_dim + hidden * (index_dim + index_heads)
    return down + cache + heads * value_dim * hidden + index, rank + query_rank


def _linear(config: Config) -> tuple[int, int]:
    hidden = config.number("hidden_size")
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    value_heads = config.number("linear_num_value_heads")
    values = value_heads * config.number("linear_value_head_dim")
    channels = 2 * keys + values
    projections = hidden * (channels + values + 2 * value_heads) + values * hidden
    conv = channels * config.number("linear_conv_kernel_dim")
    return projections, conv + 2 * value_heads + config.number("linear_value_head_dim")


def _mlp(config: Config) -> tuple[int, int, int, int, int]:
    """(dense, shared and routers; routed experts; their active part; biases; width a token), all layers."""
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    experts = config.first("num_local_experts", "num_experts", "n_routed_experts")
    if not experts:
        width = config.number("intermediate_size")
        return layers * 3 * hidden * width, 0, 0, 0, width
    sparse = _sparse_layers(config, layers)
    chosen = config.first("num_experts_per_tok", "experts_per_token", "top_k_experts", default=1)
    inner = config.first("moe_intermediate_size", default=config.first("intermediate_size"))
    shared = config.first("n_shared_experts") * inner + config.first("shared_expert_intermediate_size")
    dense = sparse * (3 * hidden * shared + hidden * experts)
    other = 0
    if config.first("shared_expert_intermediate_size"):
        dense += sparse * hidden  # the shared expert's own gate
    if config.first("intermediate_size"):
        dense += (layers - sparse) * 3 * hidden * config.first("intermediate_size")
    if config.model_type == "gpt_oss":
        other += sparse * experts * (2 * inner + hidden + 1)
    if config.fields.get("topk_method") == "noaux_tc" or config.model_type in ("deepseek_v3", "deepseek_v32"):
        other += sparse * experts  # the router's correction bias
    routed = sparse * experts * 3 * hidden * inner
    return dense, routed, routed * chosen // experts, other, chosen * inner + shared


def _sparse_layers(config: Config, layers: int) -> int:
    frequency = config.fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return sum(1 for each in frequency[:layers] if each)
    first = config.first("first_k_dense_replace")
    step = max(1, config.first("decoder_sparse_step", "interleave_moe_layer_step", default=1))
    only_dense = config.fields.get("mlp_only_layers") or []
    return sum(1 for i in range(first, layers) if (i + 1) % step == 0 and i not in only_dense)
