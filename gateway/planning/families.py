"""What model families have beside Llama's weights: biases, norms, tables, an MLP without a gate.

A family that is not here is counted like Llama, and the plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.planning.fields import Config


@dataclass(frozen=True, slots=True)
class Family:
    gated: bool = True
    """Three matrices an MLP; two without."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    norms: int = 2
    """Of the residual stream, a layer."""
    tied: bool = False
    """Output projection and input table are one, unless the config says otherwise."""
    position_rows: int | None = None
    """A learned table of positions, with so many rows more than there are positions."""
    table_norm: bool = False
    head_bias: bool = False


_BIASED = Family(gated=False, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True)
_GPT2 = replace(_BIASED, tied=True, position_rows=0)
_GPTJ = Family(gated=False, mlp_bias=True, norm_bias=True, norms=1, head_bias=True)
_LLAMA = Family()
_QKV_BIAS = Family(qkv_bias=True)
_GEMMA = Family(tied=True)
_FOUR_NORMS = Family(norms=4)

FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "phi3", "exaone", "baichuan", "internlm2"), _LLAMA),
    **dict.fromkeys(("ministral", "ministral3", "smollm3", "granite", "minimax_m2"), _LLAMA),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe"), _LLAMA),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_vl_text", "qwen3_vl_moe_text", "llama4_text"), _LLAMA),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear"), _LLAMA),
    **dict.fromkeys(
        ("glm4_moe", "minimax_text_01", "olmo2", "exaone4", "seed_oss", "chatglm", "dbrx"), _LLAMA
    ),
    "gpt_oss": Family(qkv_bias=True, out_bias=True),
    **dict.fromkeys(
        ("qwen", "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text"), Family(qkv_bias=True)
    ),
    "gemma": _GEMMA,
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "gemma4_text"), replace(_GEMMA, norms=4)),
    "glm4": _FOUR_NORMS,
    **dict.fromkeys(("cohere", "cohere2"), Family(norms=1, tied=True)),
    "stablelm": Family(norm_bias=True),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    **dict.fromkeys(("gptj", "codegen"), _GPTJ),
    "gpt_neox": _BIASED,
    "bloom": replace(_BIASED, tied=True, table_norm=True),
    "falcon": Family(gated=False, norm_bias=True, tied=True),
    "mpt": Family(gated=False, tied=True),
    "opt": replace(_BIASED, tied=True, position_rows=2),
    "phi": replace(_BIASED, norms=1, head_bias=True),
    "starcoder2": replace(_BIASED, tied=True),
    "nemotron": Family(gated=False, norm_bias=True),
    "arcee": Family(gated=False),
}
"""Checked against the parameter counts of transformers' own classes, or against the published ones."""


def known(config: Config) -> bool:
    return config.model_type in FAMILIES


def family(config: Config) -> Family:
    """The family's traits, changed by what its config switches."""
    found = FAMILIES.get(config.model_type, _LLAMA)
    if config.model_type == "falcon":
        biased = config.flag("bias")
        norms = 2 if config.flag("new_decoder_architecture") or not config.flag("parallel_attn", True) else 1
        norms = config.first("num_ln_in_parallel_attn", default=norms)
        return replace(found, qkv_bias=biased, out_bias=biased, mlp_bias=biased, norms=norms)
    if config.model_type in ("glm4", "glm4_moe", "seed_oss", "chatglm", "stablelm"):
        biased = config.flag("attention_bias", config.model_type == "seed_oss")
        biased = biased or config.flag("add_qkv_bias") or config.flag("use_qkv_bias")
        return replace(found, qkv_bias=biased, out_bias=config.flag("attention_out_bias"))
    if config.model_type == "starcoder2" and not config.flag("use_bias", True):
        return Family(gated=False, norm_bias=True, tied=True)
    if config.flag("attention_bias"):
        found = replace(found, qkv_bias=True, out_bias=True)
    return replace(found, mlp_bias=found.mlp_bias or config.flag("mlp_bias"))


def tied(config: Config) -> bool:
    return config.flag("tie_word_embeddings", family(config).tied)
