"""Counts a model's weights from its config, so that any config.json can be planned for.

The counts agree exactly with those published for the models of the built-in table (its tests).
"""

from __future__ import annotations

from gateway.planning.families import Family, family, tied
from gateway.planning.fields import Config
from gateway.planning.layers import LINEAR, layer_types
from gateway.planning.shape import Parameters

_QK_NORM = ("qwen3", "gemma3", "gemma4_text", "exaone4")
"""Beginnings of model types that normalise each head's queries and keys."""
_CORRECTED = ("deepseek_v3", "deepseek_v32", "glm4_moe", "kimi_linear", "minimax_m2")
"""Their router has a bias an expert."""


def count_parameters(config: Config) -> tuple[Parameters, int]:
    """The weights, and the MLP width (intermediate elements) that one token passes through."""
    traits = family(config)
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    table = config.number("vocab_size") * hidden
    attention, attention_other = _attention(config, traits)
    norm = (2 if traits.norm_bias else 1) * hidden
    dense, experts, active, other, width = _mlp(config, traits)
    outside = norm * (2 if traits.table_norm else 1)
    if traits.position_rows is not None:
        outside += (config.number("max_position_embeddings") + traits.position_rows) * hidden
    if traits.head_bias and not tied(config):
        outside += config.number("vocab_size")
    return (
        Parameters(
            embedding=table,
            head=0 if tied(config) else table,
            dense=attention + dense,
            experts=experts,
            active_experts=active,
            other=attention_other + other + layers * traits.norms * norm + outside,
        ),
        width,
    )


def _attention(config: Config, traits: Family) -> tuple[int, int]:
    """(projections, biases and norms) of all layers."""
    layers = config.number("num_hidden_layers")
    linear = layer_types(config).count(LINEAR)
    projections, other = _latent(config) if config.first("kv_lora_rank") else _grouped(config, traits)
    if not linear:
        return layers * projections, layers * other
    recurrent, recurrent_other = _linear(config)
    full = layers - linear
    return full * projections + linear * recurrent, full * other + linear * recurrent_other


def _grouped(config: Config, traits: Family) -> tuple[int, int]:
    hidden, heads, dim = config.number("hidden_size"), config.number("num_attention_heads"), config.head_dim
    kv_heads = config.first("num_key_value_heads", default=heads)
    value_dim = config.number("v_head_dim", dim)
    queries, keys, values = heads * dim, kv_heads * dim, kv_heads * value_dim
    gated = 2 if config.flag("attn_output_gate") or config.model_type == "qwen3_next" else 1
    other = (queries + keys + values if traits.qkv_bias else 0) + (hidden if traits.out_bias else 0)
    switched = config.model_type if config.flag("use_qk_norm") else ""
    if config.model_type.startswith(_QK_NORM) or switched == "glm4_moe":
        other += 2 * dim
    elif config.model_type in ("olmo2", "minimax_m2") or switched == "cohere":
        other += queries + keys
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
    """Of one linear-attention layer."""
    hidden = config.number("hidden_size")
    if config.fields.get("linear_attn_config") is not None:
        return _delta_attention(config.part("linear_attn_config"), hidden)
    if config.fields.get("attn_type_list") is not None:
        # lightning attention: q, k, v, a gate, out; a norm over all heads
        width = config.number("num_attention_heads") * config.head_dim
        return 5 * hidden * width, width
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    value_heads = config.number("linear_num_value_heads")
    values = value_heads * config.number("linear_value_head_dim")
    channels = 2 * keys + values
    projections = hidden * (channels + values + 2 * value_heads) + values * hidden
    conv = channels * config.number("linear_conv_kernel_dim")
    return projections, conv + 2 * value_heads + config.number("linear_value_head_dim")


def _delta_attention(linear: Config, hidden: int) -> tuple[int, int]:
    """Kimi delta attention: q, k, v and out; decay and gate through a bottleneck of one head; beta."""
    heads, dim = linear.number("num_heads"), linear.number("head_dim")
    width = heads * dim
    projections = 4 * hidden * width + 2 * (hidden * dim + dim * width) + hidden * heads
    conv = 3 * width * linear.number("short_conv_kernel_size")
    return projections, conv + heads + width + dim


def _mlp(config: Config, traits: Family) -> tuple[int, int, int, int, int]:
    """(dense, shared and routers; routed experts; their active part; biases; width a token), all layers."""
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    matrices = 3 if traits.gated else 2
    experts = config.first("num_local_experts", "num_experts", "n_routed_experts")
    if not experts:
        width = config.number("intermediate_size")
        biases = layers * ((matrices - 1) * width + hidden) if traits.mlp_bias else 0
        return layers * matrices * hidden * width, 0, 0, biases, width
    sparse = _sparse_layers(config, layers)
    chosen = config.first("num_experts_per_tok", "experts_per_token", "top_k_experts", default=1)
    inner = config.first("moe_intermediate_size", default=config.first("intermediate_size"))
    shared = config.first("n_shared_experts") * inner
    shared += config.first("shared_expert_intermediate_size", "shared_intermediate_size")
    dense_width = config.first("intermediate_size")
    if config.model_type == "llama4_text":
        # one shared expert beside the chosen ones; layers without experts have a width of their own
        shared, dense_width = inner, config.first("intermediate_size_mlp", default=dense_width)
    dense = sparse * (3 * hidden * shared + hidden * experts) + (layers - sparse) * 3 * hidden * dense_width
    other = 0
    if config.first("shared_expert_intermediate_size"):
        dense += sparse * hidden  # the shared expert's own gate
    if config.model_type == "gpt_oss":
        other += sparse * experts * (2 * inner + hidden + 1)
    if config.fields.get("topk_method") == "noaux_tc" or config.model_type in _CORRECTED:
        other += sparse * experts
    routed = sparse * experts * 3 * hidden * inner
    return dense, routed, routed * chosen // experts, other, chosen * inner + shared


def _sparse_layers(config: Config, layers: int) -> int:
    """Layers with experts."""
    frequency = config.fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return sum(1 for each in frequency[:layers] if each)
    listed = config.fields.get("moe_layers")
    if isinstance(listed, list):
        return len(listed)
    first = config.first("first_k_dense_replace")
    step = max(1, config.first("decoder_sparse_step", "interleave_moe_layer_step", default=1))
    only_dense = config.fields.get("mlp_only_layers") or []
    return sum(1 for i in range(first, layers) if (i + 1) % step == 0 and i not in only_dense)
