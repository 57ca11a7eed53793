"""The default: who would answer first?

    score = (waiting + l × max(0, waiting − 84,000) + w × uncached + a × min(uncached, 16,000)
            + m × overflow + b × excess + d × decoding + g × active requests) / prefill rate

in tokens. Waiting prefill and the request's own uncached tokens are the time to its first token, in units of
tokens of an average worker. Beside them:

- w ≥ 1 prices what the request costs whoever comes after it. With w = 1 a burst of siblings opens a copy of
  their shared prefix on every idle worker, since computing it again takes no longer than waiting for it;
  with w = 2 they wait where it is being computed until the queue there is longer than twice what they save.
- a prices what moving costs beyond this request: a conversation that moves leaves a dead copy of its past
  behind, and its next turn has two places to go to. It grows with the share of the prompt that is held
  somewhere and is in no other request in flight there, for what others have in common with it is worth a
  second copy. And it grows with the fleet's slack, the share of its workers without a queue times the share
  of their caches that nobody in flight uses: who has none cannot afford to wait. Of what moving costs no more
  than 16,000 tokens count here, so nobody waits many times that.
- l counts what waits beyond 84,000 tokens before somebody whose past is there: as a rule that is one very
  long prompt, whose last tokens attend to so much that they take several times as long as those of short
  ones, and whoever waits behind it is among the slowest of all. It is `long_wait_weight` times the fleet's
  slack times the share of its caches that nobody uses: where everybody waits, who flees one queue makes the
  others longer, and where room is short, the second copy of his past pushes out somebody else's.
- overflow is by how much the contexts of all requests in flight there, this one's too, exceed the worker's
  cache, and never less than one of them on average: room comes when somebody ends, and nobody ends in part.
  Whoever comes then waits for that and not for prefill, and meanwhile everything that is cached there and not
  in use gets evicted, what was promised to those in the queue included. 0 where the capacity is not known.
- excess is by how many tokens a worker was given more to prefill lately than the average, below zero where
  it was given less. Wherever a stranger goes it will come back to, so this is what spreads sessions, and with
  them memory and load, evenly. A stranger is a prompt of which nobody holds more than four fifths. Excess
  counts at workers that hold at most half of it, and up to 3.2 times the prompt: with b = ½ and w = 2 more
  than that would drive strangers from a worker that holds four fifths.
- waiting is, before strangers, also what yields there to whoever has his past there: the rest of prompts
  that are sent in slices (gateway.routing.slicing), for a stranger can go elsewhere.
- decoding is the context that running answers read at every step, d what a token of it slows them and this
  request down in all. More than a little of it would cost hit rate where many decode.
- g does the same for what is the same with every request, and where lengths are not known.

At least one block counts as uncached even at a full match (the last token is always computed), so no worker
ever looks free of charge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.parameters import Tokens, Weight
from gateway.routing.policies.recent_prefill import RecentPrefill
from gateway.routing.policy import RequestShape

_EXCESS_OF_PROMPT = 3.2
_HELD = 0.8


@dataclass(slots=True)
class EstimatedTTFT:
    work_weight: Weight = 2.0
    affinity_weight: Weight = 6.0
    affinity_tokens: Tokens = 16_000.0
    long_wait_weight: Weight = 4.0
    long_wait_tokens: Tokens = 84_000.0
    memory_weight: Weight = 1.0
    balance_weight: Weight = 0.5
    decode_weight: Weight = 0.05
    request_tokens: Tokens = 16.0
    name: str = "estimated_ttft"
    _recent: RecentPrefill = field(default_factory=RecentPrefill, init=False, repr=False)

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        prompt, least = request.prompt_tokens, request.block_size
        weight, memory, guard = self.work_weight, self.memory_weight, self.request_tokens
        more, balance, decode = prompt - least, self.balance_weight, self.decode_weight
        best, most, long_from = max(matched_tokens), self.affinity_tokens, self.long_wait_tokens
        affinity = self.affinity(request, loads, matched_tokens) if best else 0.0
        excess, long = None, 0.0
        if best > _HELD * prompt:
            long = self.long_wait(request, loads, matched_tokens)
        elif balance:
            excess = self.excess_tokens(request, loads, matched_tokens)
        stays = best > _HELD * prompt
        return [
            (
                (
                    waiting := load.waiting_tokens
                    + load.peer_waiting_tokens
                    + (0 if stays else load.yielding_tokens + load.peer_yielding_tokens)
                )
                + (long * (waiting - long_from) if long and waiting > long_from else 0.0)
                + weight * (uncached := prompt - matched if matched < more else least)
                + affinity * (uncached if uncached < most else most)
                + decode * (load.decoding_tokens + load.peer_decoding_tokens)
                + guard * (load.requests + load.peer_requests)
                + balance * above
                + (
                    memory * overflow_tokens(load, request)
                    if load.context_tokens + load.peer_context_tokens + prompt > load.capacity_tokens > 0
                    else 0.0
                )
            )
            / load.prefill_rate
            for load, matched, above in zip(loads, matched_tokens, excess or repeat(0.0), strict=False)
        ]

    def affinity(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> float:
        """What an uncached token counts beyond `work_weight`, up to `affinity_tokens` of them."""
        best = max(matched_tokens)
        if not best or not self.affinity_weight:
            return 0.0
        holder = loads[matched_tokens.index(best)]
        own = best - (holder.common_context(request.keys, request.block_size) if holder.marks else 0)
        if own <= 0:
            return 0.0
        idle, free = shares(loads)
        return self.affinity_weight * own / max(best, request.prompt_tokens) * (idle * free)

    def long_wait(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> float:
        """What a token beyond `long_wait_tokens` of waiting counts more; 0 where nobody holds the request's
        past, or no such wait is before it there."""
        if not self.long_wait_weight:
            return 0.0
        best = max(matched_tokens)
        if best <= _HELD * request.prompt_tokens:
            return 0.0
        holder = loads[matched_tokens.index(best)]
        if holder.waiting_tokens + holder.peer_waiting_tokens <= self.long_wait_tokens:
            return 0.0
        idle, free = shares(loads)
        return self.long_wait_weight * idle * free * free

    def excess_tokens(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float] | None:
        """What each was given lately beyond the average, 0 where most of the prompt is held; None where
        nobody counts it, for the prompt is no stranger."""
        prompt, best = request.prompt_tokens, max(matched_tokens)
        if best > _HELD * prompt or not prompt:
            return None
        above = self._recent.above_mean(loads, _EXCESS_OF_PROMPT * prompt)
        half = prompt / 2
        if best <= half:
            return above
        return [0.0 if matched > half else a for a, matched in zip(above, matched_tokens, strict=True)]

    def chosen(
        self,
        request: RequestShape,
        loads: Sequence[WorkerLoad],
        matched_tokens: Sequence[int],
        index: int,
    ) -> None:
        uncached = request.prompt_tokens - matched_tokens[index]
        self._recent.add(loads, index, max(request.block_size, uncached))


def slack(loads: Sequence[WorkerLoad]) -> float:
    """0…1: the share of the workers without a queue times the share of their caches that nobody in flight
    uses."""
    idle, free = shares(loads)
    return idle * free


def shares(loads: Sequence[WorkerLoad]) -> tuple[float, float]:
    """Of the workers, those without a queue; of their caches, what nobody in flight uses. Caches of unknown
    size count as unused."""
    idle = used = room = 0
    for load in loads:
        if not load.waiting_tokens and not load.peer_waiting_tokens:
            idle += 1
        if load.capacity_tokens:
            used += load.context_tokens + load.peer_context_tokens
            room += load.capacity_tokens
    return idle / len(loads), max(0.0, 1.0 - used / room) if room else 1.0


def overflow_tokens(load: WorkerLoad, request: RequestShape) -> int:
    """Tokens of context in flight that must end before there is room for this request."""
    context = load.context_tokens + load.peer_context_tokens
    over = context + request.prompt_tokens - load.capacity_tokens
    if over <= 0:
        return 0
    over -= load.common_context(request.keys, request.block_size)
    return max(over, context // max(1, load.requests + load.peer_requests)) if over > 0 else 0
