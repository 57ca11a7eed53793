"""Where would this request go, and why? Asks what routing asks; sends and reserves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from random import Random

from gateway.fleet.worker import Worker
from gateway.prompt.base import PromptRequest
from gateway.routing.caller import ANYBODY, Caller
from gateway.routing.in_time import Expected, expected
from gateway.routing.policies.estimated_ttft import EstimatedTTFT, overflow_tokens, slack
from gateway.routing.router import Router
from gateway.routing.shadow import Shadow
from gateway.routing.weighing import Reading, Weighing
from gateway.types import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as the decision saw it."""

    worker: str
    url: str
    state: str
    matched_tokens: int
    uncached_tokens: int
    requests: int
    waiting_tokens: int
    yielding_tokens: int
    """Of prompts in slices there, what whoever comes may pass: it waits before strangers alone."""
    long_wait: float
    """Tokens that the policy adds where a very long prompt waits before this one's past."""
    decoding_tokens: int
    overflow_tokens: int
    """Context in flight that must end before there is room for this prompt too."""
    excess_tokens: float
    """What it was given to prefill lately beyond the average, where the policy counts it."""
    cached_blocks: int
    capacity_blocks: int
    prefill_rate: float
    expected_ttft_s: float | None
    """What waits there and this prompt's uncached tokens, over its measured tokens a second; None before it
    has been measured."""
    score: float | None
    """None where it is not a candidate; what is not finite is told as None too: JSON has no such number."""
    chosen: bool
    verdict: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All figures of one decision; JSON-able as it is."""

    model: str
    adapter: str
    sent_as: str
    policy: str
    tokenizer: str
    exact: bool
    prompts: int
    prompt_tokens: int
    not_tokenised: str
    """Why nothing is known of the prompt's tokens, and load alone decides; empty where it is known."""
    block_size: int
    blocks: int
    """Blocks that a cache could serve, over all prompts."""
    reusable_tokens: int
    affinity: float
    """What each of the first uncached tokens counts beyond the policy's weight of work, where it does so."""
    slack: float
    """The fleet's, 0…1, which affinity and long waits grow with, where the policy counts them."""
    chosen: str | None
    reason: str
    slices: int
    """In how many pieces the prompt would go to the chosen worker, the request itself among them; 0 without
    one."""
    workers: tuple[WorkerView, ...]
    """Candidates by score, best first, then the others."""


async def explain(router: Router, request: PromptRequest, *, caller: Caller = ANYBODY) -> Explanation:
    """Raises ModelNotFound or Unavailable as routing would; a full fleet is explained, not raised."""
    reading = await router.read(request, caller)
    # a draw of its own, so that asking does not change what is drawn next
    weighing = router.in_time(reading, router.weigh(reading, random=Random(0)))
    long_waits, excess = _long_waits(reading, weighing), _excess(reading, weighing)
    views = [_view(worker, reading, weighing, router, long_waits, excess) for worker in weighing.workers]
    winner = weighing.winner
    return Explanation(
        model=reading.scope.model,
        adapter=reading.scope.adapter,
        sent_as=reading.target.name,
        policy=weighing.policy.name,
        tokenizer=reading.encoder or "none",
        exact=reading.exact,
        prompts=len(reading.prompts),
        prompt_tokens=reading.prompt_tokens,
        not_tokenised=reading.not_tokenised,
        block_size=reading.target.unit,
        blocks=sum(len(prompt.cacheable) for prompt in reading.prompts),
        reusable_tokens=weighing.reusable,
        affinity=_affinity(reading, weighing),
        slack=_slack(weighing),
        chosen=None if winner is None else weighing.candidates[winner].id,
        reason="" if winner is None else weighing.reason,
        slices=_slices(router, reading, weighing),
        workers=tuple(sorted(views, key=_best_first)),
    )


def _slices(router: Router, reading: Reading, weighing: Weighing) -> int:
    if weighing.winner is None:
        return 0
    sliced = router.sliced(reading, weighing, weighing.winner)
    return 1 if sliced is None else len(sliced.plan.cuts) + 1


def _affinity(reading: Reading, weighing: Weighing) -> float:
    policy = _estimating(weighing)
    return policy.affinity(reading.shape, weighing.loads, weighing.matched) if policy else 0.0


def _slack(weighing: Weighing) -> float:
    return slack(weighing.loads) if _estimating(weighing) else 0.0


def _long_waits(reading: Reading, weighing: Weighing) -> dict[WorkerId, float]:
    policy = _estimating(weighing)
    if policy is None:
        return {}
    factor = policy.long_wait(reading.shape, weighing.loads, weighing.matched)
    return {
        load.worker: factor * max(0.0, load.all_waiting_tokens - policy.long_wait_tokens)
        for load in weighing.loads
    }


def _excess(reading: Reading, weighing: Weighing) -> dict[WorkerId, float]:
    policy = _estimating(weighing)
    tokens = policy.excess_tokens(reading.shape, weighing.loads, weighing.matched) if policy else None
    if tokens is None:
        return {}
    return {worker.id: excess for worker, excess in zip(weighing.candidates, tokens, strict=True)}


def _estimating(weighing: Weighing) -> EstimatedTTFT | None:
    """The acting policy, where it has terms of its own to show and somebody to show them of."""
    policy = weighing.policy.acting if isinstance(weighing.policy, Shadow) else weighing.policy
    return policy if isinstance(policy, EstimatedTTFT) and weighing.candidates else None


def _view(
    worker: Worker,
    reading: Reading,
    weighing: Weighing,
    router: Router,
    long_waits: Mapping[WorkerId, float],
    excess: Mapping[WorkerId, float],
) -> WorkerView:
    load = router.load_of(worker)
    index = next((i for i, c in enumerate(weighing.candidates) if c is worker), None)
    score = None if index is None else weighing.scores[index]
    matched = weighing.matches.get(worker.id, 0)
    uncached = max(0, reading.prompt_tokens - matched)
    time = expected(load, uncached, router.rates)
    return WorkerView(
        worker=worker.id,
        url=worker.spec.url,
        state=worker.state.value,
        matched_tokens=matched,
        uncached_tokens=uncached,
        requests=load.all_requests,
        waiting_tokens=load.all_waiting_tokens,
        yielding_tokens=load.all_yielding_tokens,
        long_wait=long_waits.get(worker.id, 0.0),
        decoding_tokens=load.all_decoding_tokens,
        overflow_tokens=overflow_tokens(load, reading.shape) if load.capacity_tokens else 0,
        excess_tokens=excess.get(worker.id, 0.0),
        cached_blocks=load.cached_blocks,
        capacity_blocks=load.capacity_blocks,
        prefill_rate=load.prefill_rate,
        expected_ttft_s=None if time is None else time.ttft,
        score=score if score is not None and isfinite(score) else None,
        chosen=index is not None and index == weighing.winner,
        verdict=_late(time, index, router.max_ttft) or verdict(worker, index, weighing),
    )


def _late(time: Expected | None, index: int | None, most: float) -> str:
    if not most or index is None or time is None or time.in_time(most):
        return ""
    return f"first token expected in {time.ttft:.1f} s, later than {most:g} s"


def verdict(worker: Worker, index: int | None, weighing: Weighing) -> str:
    if index is None:
        return f"not a candidate: {weighing.refusals[worker.id].text}"
    assert weighing.winner is not None  # noqa: S101 - there is a candidate, so somebody won
    best = weighing.scores[weighing.winner]
    if index == weighing.winner:
        others = sum(score == best for score in weighing.scores) - 1
        return f"chosen: lowest score, with {others} others" if others else "chosen: lowest score"
    if worker.id in weighing.behind:
        return "slow start: it has come back, and had its share for now"
    gap = weighing.scores[index] - best
    if gap == 0:
        return "same score: lost the tie (coldest cache, then fewest requests, then chance)"
    longer = weighing.matched[index] - weighing.matched[weighing.winner]
    held = f", though it holds {longer} tokens more" if longer > 0 else ""
    return f"score is {gap:.1f} higher{held}"


def _best_first(view: WorkerView) -> tuple[bool, bool, float]:
    return (not view.chosen, view.score is None, view.score or 0.0)
