"""A config.json's fields: typed access, and older families' names for the same things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest

_NAMES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "model_max_length"),
    "vocab_size": ("padded_vocab_size",),
    "head_dim": ("kv_channels",),
    "num_experts_per_tok": ("num_experts_per_token",),
    "n_shared_experts": ("num_shared_experts",),
}
"""GPT-2, GPT-BigCode, GPT-J, BLOOM, Falcon, MPT, DBRX, OPT, ChatGLM, EXAONE 3, Step-3.5, Kimi Linear."""

_FOUR_TIMES = ("gpt2", "gpt_bigcode", "gptj", "codegen", "bloom", "falcon", "mpt")
"""Whose MLP is four times as wide as the model where the config names no width."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen3": {"head_dim": 128},
    "seed_oss": {"head_dim": 128},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "falcon": {"max_position_embeddings": 2048},
    "bloom": {"max_position_embeddings": 2048},
}
"""Values of the model's class in transformers that published configs leave out."""


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

    def numbers(self, key: str) -> list[int]:
        """A list of whole numbers; empty where the config has none."""
        value = self.fields.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise InvalidRequest(f"{self.name}: config's {key} is no list of numbers", param=f"config.{key}")
        return [int(each) for each in value]

    def part(self, key: str) -> Config:
        """A nested object; empty where there is none."""
        value = self.fields.get(key)
        return Config(value if isinstance(value, Mapping) else {}, self.name)

    @property
    def model_type(self) -> str:
        return str(self.fields.get("model_type", ""))

    @property
    def head_dim(self) -> int:
        heads = self.number("num_attention_heads")
        return self.number("head_dim", self.number("hidden_size") // max(1, heads))


def unify(fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields under today's names, and the names of those that came from the class's own defaults."""
    named = dict(fields)
    for key, others in _NAMES.items():
        if named.get(key) is None:
            found = next((named[other] for other in others if named.get(other) is not None), None)
            if found is not None:
                named[key] = found
    kind = str(named.get("model_type", ""))
    _heads(named, kind)
    _mlp(named, kind)
    filled = tuple(key for key in _DEFAULTS.get(kind, {}) if named.get(key) is None)
    return named | {key: _DEFAULTS[kind][key] for key in filled}, filled


def _heads(named: dict[str, Any], kind: str) -> None:
    """How each older family says that query heads share K and V."""
    attention = named.get("attn_config")
    if kind in ("mpt", "dbrx") and isinstance(attention, Mapping):
        named.setdefault("num_key_value_heads", attention.get("kv_n_heads"))
    if kind == "falcon" and not named.get("new_decoder_architecture"):
        # without it the number of K/V heads is ignored: one, or as many as there are query heads
        single = named.get("multi_query", True)
        named["num_key_value_heads"] = 1 if single else named.get("num_attention_heads")
    if kind == "gpt_bigcode" and named.get("multi_query", True):
        named["num_key_value_heads"] = 1
    if kind == "chatglm" and not named.get("multi_query_attention"):
        named["num_key_value_heads"] = named.get("num_attention_heads")


def _mlp(named: dict[str, Any], kind: str) -> None:
    experts = named.get("ffn_config")
    if kind == "dbrx" and isinstance(experts, Mapping):
        named["moe_intermediate_size"] = experts.get("ffn_hidden_size")
        named["num_experts"] = experts.get("moe_num_experts", 4)
        named["num_experts_per_tok"] = experts.get("moe_top_k", 1)
    if kind in _FOUR_TIMES and named.get("intermediate_size") is None:
        times = named.get("expansion_ratio", 4)
        if isinstance(named.get("hidden_size"), int) and isinstance(times, int):
            named["intermediate_size"] = times * named["hidden_size"]
    if kind == "qwen" and isinstance(named.get("intermediate_size"), int):
        # the first Qwen counts the gate's half and the other half together
        named["intermediate_size"] //= 2
