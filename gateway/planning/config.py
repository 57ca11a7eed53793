"""Reads a Hugging Face config.json into a ModelShape.

A field that is absent takes the default that the model's own class has. What cannot be counted right is
refused by name, rather than counted wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.planning import checkpoint
from gateway.planning.families import known
from gateway.planning.fields import Config, unify
from gateway.planning.layers import attention_layers
from gateway.planning.parameters import count_parameters
from gateway.planning.shape import ModelShape

_REFUSED = {
    **dict.fromkeys(
        ("mamba_d_state", "ssm_state_size", "hybrid_override_pattern", "mamba_config", "compress_ratios"),
        "state-space and compressed caches are not counted",
    ),
    **dict.fromkeys(
        ("mamba_expand", "ssm_cfg", "ssm_config", "conv_L_cache", "rwkv_version", "attn_layer_period"),
        "state-space and convolutional layers are not counted",
    ),
    **dict.fromkeys(
        ("layers_block_type", "block_types", "block_configs", "mixer_types", "attention_other_setting"),
        "layers that differ so are not counted",
    ),
    "layer_group_size": "its linear-attention layers are not counted",
    "cross_attention_layers": "layers that attend to images are not counted",
    **dict.fromkeys(
        ("num_kv_shared_layers", "cla_share_factor", "kv_sharing_layers"),
        "layers that share K/V are not counted",
    ),
}
_ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert")
_RECURRENT = ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm")
"""Model types without attention. Some of their configs have no field that tells."""
MOST_LAYERS = 10_000


def shape_from_config(
    fields: Mapping[str, Any], *, name: str, source: str, weights_bytes: int | None = None
) -> ModelShape:
    """Raises InvalidRequest for a config that is incomplete, or of a kind whose cache is not counted here."""
    notes: list[str] = []
    text = fields.get("text_config")
    if isinstance(text, Mapping):
        notes.append("multimodal: weights of its vision or audio part are not counted")
        above = ("tie_word_embeddings", "torch_dtype", "dtype")
        fields = (
            {key: fields[key] for key in above if key in fields}
            | {**text}
            | {key: fields[key] for key in ("quantization_config",) if key in fields}
        )
    unified, filled = unify(fields)
    config = Config(unified, name)
    _refuse(config)
    if filled:
        notes.append(f"not in the config, taken from its class: {', '.join(filled)}")
    if not known(config):
        notes.append(
            f"model type {config.model_type!r} is not one that was checked: counted as if it were a Llama"
        )
    _check_sizes(config)
    experts = config.first("num_local_experts", "num_experts", "n_routed_experts")
    chosen = config.first("num_experts_per_tok", "experts_per_token", "top_k_experts")
    if chosen > experts > 0:
        raise InvalidRequest(f"{name}: {chosen} experts a token of {experts}", param="config")
    attention, recurrent = attention_layers(config, notes)
    if config.first("kv_lora_rank") > 0:
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
        checkpoint=checkpoint.weights(fields),
        kv=checkpoint.kv(fields),
        experts_total=experts,
        experts_per_token=chosen,
        weights_bytes=weights_bytes,
        notes=tuple(notes),
    )


def _check_sizes(config: Config) -> None:
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if config.number(key) == 0:
            raise InvalidRequest(f"{config.name}: config's {key} is 0", param=f"config.{key}")
    if config.number("num_hidden_layers") > MOST_LAYERS:
        raise InvalidRequest(
            f"{config.name}: more than {MOST_LAYERS} layers", param="config.num_hidden_layers"
        )


def _refuse(config: Config) -> None:
    if config.flag("is_encoder_decoder"):
        raise InvalidRequest(f"{config.name}: encoder-decoder models are not planned for", param="model")
    if config.model_type in _ENCODERS and not config.flag("is_decoder"):
        raise InvalidRequest(
            f"{config.name}: {config.model_type} is an encoder, it keeps no K/V", param="config.model_type"
        )
    if config.model_type in _RECURRENT:
        raise InvalidRequest(
            f"{config.name}: {config.model_type} keeps a recurrent state, no K/V: it is not planned for",
            param="config.model_type",
        )
    for key, why in _REFUSED.items():
        # empty, 0, or groups of one layer: the model has none of it
        if config.fields.get(key) not in (None, 0, [], {}, 1 if key == "layer_group_size" else 0):
            raise InvalidRequest(f"{config.name}: its config has {key}: {why}", param=f"config.{key}")
