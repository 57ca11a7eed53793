"""How much of a step one prompt may take, where most are short and some take many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.planning.result import Advice
from gateway.planning.roofline import ttft_estimate

if TYPE_CHECKING:
    from gateway.planning.planner import Deployment

MANY_STEPS = 4
_PARTS = 2
"""Of a step. From a sixteenth to half of 8,192 tokens all were alike (docs/routing-study.md), and of prompts
that begin alike and come together as many are computed side by side as there are parts."""
_LEAST = 512
"""Below some hundred tokens a step is spent on reading weights."""

SLICED = 20_000
"""New tokens beyond which the gateway would cut a prompt in two and more, with slices of their usual size."""
SLICED_SHARE = 0.3
"""Of a replica's cache, what such a prompt may need at most."""


def threshold(deployment: Deployment, max_model_len: int) -> int | None:
    """Tokens; None where nobody is passed: the longest prompt takes few steps, it is alone, or the usual one
    is long itself, and then all would only be done later."""
    workload, step = deployment.workload, deployment.batched_tokens
    longest = min(workload.input_longest, max_model_len)
    usual = workload.input_mean - workload.prefix
    if deployment.wanted < 2 or longest < MANY_STEPS * step or usual > step:
        return None
    return max(_LEAST, step // _PARTS)


def advise(deployment: Deployment, max_model_len: int, kv_tokens: int) -> list[Advice]:
    """`kv_tokens` are what one replica's cache holds."""
    value = threshold(deployment, max_model_len)
    if value is None:
        return []
    longest, step = min(deployment.workload.input_longest, max_model_len), deployment.batched_tokens
    return [
        Advice(
            what="long-prefill-token-threshold",
            value=str(value),
            reason=f"a prompt of {longest:,} tokens takes {-(-longest // step)} whole steps of {step:,}, and"
            f" who comes meanwhile waits for them; with at most {value:,} of a step for one of several,"
            " short prompts pass it (vLLM; 0.32 leaves a prompt that is alone the whole step). No smaller: of"
            " prompts that begin alike and come together more would compute the same side by side"
            + _without_the_flag(deployment, longest, kv_tokens),
        )
    ]


def _without_the_flag(deployment: Deployment, longest: int, kv_tokens: int) -> str:
    """What the gateway does for engines that have no such flag, where it would."""
    target = deployment.workload.ttft_target
    if not SLICED < longest <= SLICED_SHARE * kv_tokens or (
        target is not None and ttft_estimate(deployment, longest, 0) <= target
    ):
        return ""
    after = "SECONDS" if target is None else f"{target:g}"
    return f". An engine without such a flag: the gateway's --slice-after {after} sends it in slices"
