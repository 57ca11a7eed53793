"""Named engines to simulate: a GPU, a model, and the limits that such an engine runs with.

h100-8b   h100-70b-tp4   a100-8b   l4-8b        roofline of real hardware
fast                                            no time at all, for tests
20us-per-token   20us-per-token,5ms-per-step    figures of one's own
h100-8b,num_blocks=3000,compute_efficiency=0.4  any of these with other figures
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from workers.timing import Gpu, LinearTiming, Model, RooflineTiming, Timing
from workers.types import EngineConfig

_FIGURE = re.compile(r"(?P<value>\d+(?:\.\d+)?)(?P<unit>ns|us|ms|s)-per-(?P<per>token|step)")
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_LIMITS = (
    "block_size",
    "num_blocks",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
)
_ROOFLINE = ("compute_efficiency", "memory_efficiency", "overhead_s")


@dataclass(frozen=True, slots=True)
class Profile:
    """A timing model and the engine limits that go with it."""

    name: str
    timing: Timing
    num_blocks: int
    max_model_len: int = 131_072
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8_192
    long_prefill_token_threshold: int = 0
    block_size: int = 16

    def engine_config(self, model: str) -> EngineConfig:
        """A sequence must fit the pool, so a small pool shortens the longest sequence."""
        return EngineConfig(
            model=model,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_model_len=min(self.max_model_len, self.num_blocks * self.block_size),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
        )


def profile_named(text: str) -> Profile:
    """`text` as in this module's head. Raises ValueError that says what there is."""
    head, *options = text.split(",")
    builtin = builtin_profiles().get(head)
    if builtin is None:
        figures = [part for part in (head, *options) if _FIGURE.fullmatch(part)]
        if head not in figures:
            raise ValueError(
                f"no simulated engine is called {head!r}: there are {', '.join(builtin_profiles())}, "
                "and figures such as 20us-per-token or 20us-per-token,5ms-per-step"
            )
        options = [part for part in options if part not in figures]
        builtin = Profile(name=head, timing=_linear(figures), num_blocks=8_192)
    for option in options:
        builtin = _with_option(builtin, option)
    return replace(builtin, name=text)


def builtin_profiles() -> dict[str, Profile]:
    """GPUs by NVIDIA's data sheets (SXM; dense bf16), memory as the driver reports it, models by their
    config.json. Limits are vLLM's defaults for such a GPU, where it serves an API."""
    h100 = Gpu(flops=989e12, bandwidth=3.35e12, memory=80 * 2**30)
    a100 = Gpu(flops=312e12, bandwidth=2.039e12, memory=80 * 2**30)
    l4 = Gpu(flops=121e12, bandwidth=0.3e12, memory=22.5 * 2**30)
    llama_8b = Model(parameters=8.03e9, layers=32, heads=32, kv_heads=8, head_size=128)
    llama_70b = Model(parameters=70.55e9, layers=80, heads=64, kv_heads=8, head_size=128)
    profiles = (
        _roofline("h100-8b", RooflineTiming(llama_8b, h100), 1_024, 8_192),
        # two all-reduces a layer across four GPUs
        _roofline("h100-70b-tp4", RooflineTiming(llama_70b, h100, 4, overhead_s=0.006), 1_024, 8_192),
        _roofline("a100-8b", RooflineTiming(llama_8b, a100), 256, 2_048),
        _roofline("l4-8b", RooflineTiming(llama_8b, l4), 256, 2_048),
        Profile(name="fast", timing=LinearTiming(), num_blocks=4_096, max_model_len=32_768),
    )
    return {profile.name: profile for profile in profiles}


def _roofline(name: str, timing: RooflineTiming, max_num_seqs: int, budget: int) -> Profile:
    return Profile(
        name=name,
        timing=timing,
        num_blocks=timing.num_blocks(16),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
    )


def _linear(figures: list[str]) -> LinearTiming:
    seconds = {"token": 0.0, "step": 0.0}
    for figure in figures:
        match = _FIGURE.fullmatch(figure)
        if match is not None:
            seconds[match["per"]] = float(match["value"]) / _PER_SECOND[match["unit"]]
    return LinearTiming(prefill_token_s=seconds["token"], step_s=seconds["step"])


def _with_option(profile: Profile, option: str) -> Profile:
    name, equals, value = option.partition("=")
    change: dict[str, Any] = {}
    try:
        if equals and name in _LIMITS:
            change[name] = int(value)
            return replace(profile, **change)
        if equals and name in _ROOFLINE and isinstance(profile.timing, RooflineTiming):
            change[name] = float(value)
            return replace(profile, timing=replace(profile.timing, **change))
    except ValueError as error:
        raise ValueError(f"{option!r}: {error}") from None
    known = (*_LIMITS, *(_ROOFLINE if isinstance(profile.timing, RooflineTiming) else ()))
    raise ValueError(f"{option!r} is no option of {profile.name}: there are {', '.join(known)} (name=value)")
