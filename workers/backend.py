"""What stands behind the API: a model that computes, or a simulated engine, with the tokenizer it speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tokenizers import Tokenizer

from gateway.prompt.files import load_tokenizer_files
from gateway.prompt.render import ChatRenderer
from workers.api.prompts import RenderChat
from workers.profiles import profile_named
from workers.types import EngineConfig, Runner

SIM_PREFIX = "sim:"


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator may set; None leaves it to the model or the profile."""

    block_size: int | None = None
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    kv_dtype: Literal["float32", "float16", "int8", "fp8"] | None = None
    enable_prefix_caching: bool | None = None

    def over(self, config: EngineConfig) -> EngineConfig:
        """`config` with these on top. The longest sequence shrinks to the blocks there are, and so does the
        number of sequences to the tokens of a step, unless it is set itself."""
        given: dict[str, Any] = {
            field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None
        }
        config = replace(config, **given)
        if self.max_model_len is None:
            room = config.num_blocks * config.block_size
            config = replace(config, max_model_len=min(config.max_model_len, room))
        if self.max_num_seqs is None:
            config = replace(config, max_num_seqs=min(config.max_num_seqs, config.max_num_batched_tokens))
        return config


@dataclass(frozen=True, slots=True)
class Backend:
    """`root` is where the weights come from, as /v1/models tells it."""

    config: EngineConfig
    runner: Runner
    tokenizer: Tokenizer
    render_chat: RenderChat
    root: str


def load_backend(
    model: str,
    limits: Limits,
    *,
    name: str | None,
    seed: int | None,
    time_scale: float,
    mean_output_tokens: float | None,
    tokenizer: str | None,
) -> Backend:
    """`name` is the served one, by default the model's own. Raises ModelError, ConfigError or ValueError with
    a message for the operator."""
    if model.startswith(SIM_PREFIX):
        return _simulated(
            model,
            limits,
            name=name or model,
            seed=seed or 0,
            time_scale=time_scale,
            mean_output_tokens=mean_output_tokens,
            tokenizer=tokenizer or "tiny",
        )
    return _computed(model, limits, name=name, seed=seed, tokenizer=tokenizer)


def _computed(
    model: str, limits: Limits, *, name: str | None, seed: int | None, tokenizer: str | None
) -> Backend:
    # NumPy is imported here, after the number of its threads is set, and not at all where it isn't needed
    import numpy as np

    from workers.model.resolve import locate_model, resolve_model
    from workers.model.runner import NumpyRunner

    loaded = resolve_model(model)
    base = EngineConfig(model=name or loaded.name, max_model_len=loaded.config.max_position_embeddings)
    config = limits.over(base)
    runner = NumpyRunner(
        loaded,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        kv_dtype=config.kv_dtype,
        rng=None if seed is None else np.random.default_rng(seed),
    )
    files = load_tokenizer_files(locate_model(tokenizer) if tokenizer else loaded.tokenizer_source)
    return Backend(config, runner, files.tokenizer, ChatRenderer(files).render, str(loaded.tokenizer_source))


def _simulated(
    model: str,
    limits: Limits,
    *,
    name: str,
    seed: int,
    time_scale: float,
    mean_output_tokens: float | None,
    tokenizer: str,
) -> Backend:
    from workers.model.resolve import locate_model
    from workers.sim import SimRunner

    profile = profile_named(model.removeprefix(SIM_PREFIX))
    config = limits.over(profile.engine_config(name))
    files = load_tokenizer_files(locate_model(tokenizer))
    special = files.tokenizer.get_added_tokens_decoder()
    eos = files.token_id("eos_token")
    runner = SimRunner(
        profile.timing,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        vocab_size=files.vocab_size,
        # special tokens that lead the vocabulary would make no text
        first_token_id=_leading(special),
        eos_token_ids=frozenset() if eos is None else frozenset({eos}),
        mean_output_tokens=mean_output_tokens,
        seed=seed,
        time_scale=time_scale,
    )
    return Backend(config, runner, files.tokenizer, ChatRenderer(files).render, model)


def _leading(special: Mapping[int, Any]) -> int:
    """The first token id that is not special."""
    first = 0
    while first in special:
        first += 1
    return first
