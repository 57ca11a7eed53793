"""Which sequence computes how many tokens in the next step.

Continuous batching in the manner of vLLM v1: prompt and generated tokens are the same thing, known tokens
whose K/V are missing. Running sequences go first, in order of arrival, so decodes (one token each) come
before the rest of a long prompt; what is left of the step's token budget admits waiting ones, first come
first served, and a prompt longer than the budget is computed in chunks. `long_prefill_token_threshold`
bounds a sequence's part of a step, so that short prompts pass a long one; a sequence that is alone has the
whole budget (vLLM 0.32; 0.28 bounds that one, too). Where blocks run out, the latest arrival is preempted: it
gives back its blocks, goes to the head of the queue and computes itself again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.kv.keys import cacheable_blocks
from gateway.types import BlockKey
from workers.blocks import BlockPool, expect
from workers.schedule import Schedule
from workers.sequence import SequenceState, Status
from workers.types import EngineConfig, EngineRequest, TokenOutput


class RequestRefused(ValueError):
    """A request that this engine can never serve; the message says why, for a person."""


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start, in tokens (preemptions: in events)."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class Scheduler:
    """Pure decisions: no clock, no thread, no arithmetic. `schedule` and `complete` alternate."""

    def __init__(self, config: EngineConfig, pool: BlockPool, eos_token_ids: frozenset[int]) -> None:
        """Raises ValueError for a config under which some sequence could never finish."""
        check_config(config)
        self.config = config
        self.pool = pool
        self.counters = SchedulerCounters()
        self._eos = eos_token_ids
        self._waiting: OrderedDict[str, SequenceState] = OrderedDict()
        self._running: dict[str, SequenceState] = {}
        """In order of arrival: admission is first come first served, and the preempted come back first."""
        self._refused_at: tuple[SequenceState, int] | None = None

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def check(self, request: EngineRequest) -> None:
        """Raises RequestRefused for what can never be served here."""
        length = len(request.prompt_token_ids)
        if not length:
            raise RequestRefused("the prompt is empty")
        if length >= self.config.max_model_len:
            raise RequestRefused(
                f"the prompt has {length} tokens; with one to generate, at most "
                f"{self.config.max_model_len - 1} fit this model's maximum length"
            )
        if request.sampling.max_tokens < 1:
            raise RequestRefused("max_tokens must be at least 1")

    def add(self, request: EngineRequest, prompt_keys: Sequence[BlockKey] | None = None) -> None:
        """Queue it. Raises RequestRefused, also where its id is already here."""
        self.check(request)
        if request.request_id in self._waiting or request.request_id in self._running:
            raise RequestRefused(f"request id {request.request_id} is already here")
        sequence = SequenceState(request, self.config, self._eos, prompt_keys)
        self._waiting[request.request_id] = sequence

    def abort(self, request_id: str) -> TokenOutput | None:
        """End it and free what it holds, at once. None where it is not here (any more)."""
        sequence = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
        if sequence is None:
            return None
        self._free(sequence)
        return sequence.aborted()

    def schedule(self) -> Schedule:
        """The next step's batch, blocks allocated; empty only where there is no work at all.

        Its full blocks are registered here, before they are computed, as in vLLM: what is admitted later in
        the same step can already share them.
        """
        schedule = Schedule()
        preempted = self.counters.preemptions
        most = self._most_of_one()
        budget = self._schedule_running(schedule, self.config.max_num_batched_tokens, most)
        if self.counters.preemptions == preempted:
            self._admit_waiting(schedule, budget, most)
        return schedule

    def quiet_steps(self, schedule: Schedule) -> int:
        """How many steps, `schedule` the first, will feed the same sequences one token each and change
        nothing else, if nobody comes or goes: no first token, no block, no admission, and no end but in the
        last of them."""
        if len(schedule.batch) < len(self._running) or self._may_admit():
            return 1
        size = self.config.block_size
        quiet = size
        for sequence, _count in schedule.batch:
            computed = sequence.num_computed + 1
            if not sequence.output or computed != sequence.num_tokens or sequence.ending_ids:
                return 1  # its first token, more than one token, or an end that only tokens can tell
            filled = computed % size
            quiet = min(quiet, size - filled if filled else 1, sequence.longest - sequence.num_tokens)
        return quiet

    def complete_quiet(
        self, schedule: Schedule, steps: int, draw: Callable[[SequenceState, int], Sequence[int]]
    ) -> list[SequenceState]:
        """Take in the first `steps` of `quiet_steps` at once; `draw` gives that many next tokens."""
        advanced = []
        for sequence, _count in schedule.batch:
            if sequence.status is not Status.RUNNING:
                continue
            advanced.append(sequence)
            # only the last can fill a block or end the sequence
            *tokens, last = draw(sequence, steps)
            sequence.output += tokens
            sequence.num_tokens += steps - 1
            ended = sequence.append(last)
            sequence.num_computed += steps
            self.counters.generation_tokens += steps
            if ended:
                del self._running[sequence.request.request_id]
                self._free(sequence)
        return advanced

    def complete(self, schedule: Schedule, tokens: Sequence[int | None]) -> list[SequenceState]:
        """Take in a computed step: `tokens` is parallel to the batch, None where a sequence has known tokens
        left to compute. Returns those that got a token; the finished ones among them hold nothing any more.
        Sequences aborted meanwhile are passed over."""
        counters = self.counters
        advanced = []
        for (sequence, count), token in zip(schedule.batch, tokens, strict=True):
            if sequence.status is not Status.RUNNING:
                continue
            sequence.num_computed += count
            if sequence.num_computed < sequence.num_tokens:
                continue
            if token is None:
                raise ValueError(f"the runner gave no token for {sequence!r}")
            advanced.append(sequence)
            counters.generation_tokens += 1
            if not sequence.output:
                counters.prompt_tokens += len(sequence.prompt)
            if sequence.append(token):
                del self._running[sequence.request.request_id]
                self._free(sequence)
        return advanced

    def check_integrity(self) -> None:
        """Recompute what can be recomputed; raises AssertionError at the first thing that differs."""
        self.pool.check_integrity([s.blocks for s in self._running.values()])
        expect(len(self._running) <= self.config.max_num_seqs, "no more sequences than allowed")
        for sequence in self._running.values():
            size = self.config.block_size
            expect(sequence.status is Status.RUNNING, "running sequences say so")
            expect(sequence.num_computed <= sequence.num_tokens, "nothing unknown is computed")
            expect(sequence.num_computed <= len(sequence.blocks) * size, "what is computed has a block")
            expect(len(sequence.keys) == sequence.num_tokens // size, "one key a full block")
            if self.config.enable_prefix_caching:
                expect(sequence.num_registered == sequence.num_computed // size, "full blocks are findable")
        for sequence in self._waiting.values():
            expect(sequence.status is Status.WAITING and not sequence.blocks, "who waits holds nothing")

    def _most_of_one(self) -> int:
        """Tokens that one sequence may have of the next step's budget."""
        threshold = self.config.long_prefill_token_threshold
        if threshold and len(self._running) + len(self._waiting) > 1:
            return threshold
        return self.config.max_num_batched_tokens

    def _schedule_running(self, schedule: Schedule, budget: int, most: int) -> int:
        size = self.config.block_size
        for sequence in list(self._running.values()):
            # the preempted are the latest, so behind the first of them there are only others
            if not budget or sequence.status is not Status.RUNNING:
                break
            count = min(sequence.num_tokens - sequence.num_computed, budget, most)
            end = sequence.num_computed + count
            if end > len(sequence.blocks) * size and not self._make_room(sequence, end):
                break
            schedule.batch.append((sequence, count))
            if end // size > sequence.num_registered:
                self._register(sequence, end)
            budget -= count
        return budget

    def _make_room(self, sequence: SequenceState, tokens: int) -> bool:
        """Blocks for `tokens` in all, preempting later arrivals; False where it fell victim itself."""
        need = self._blocks_for(tokens) - len(sequence.blocks)
        while self.pool.num_free < need:
            request_id, victim = self._running.popitem()
            self._preempt(request_id, victim)
            if victim is sequence:
                return False
        sequence.blocks += self.pool.allocate(need)
        return True

    def _admit_waiting(self, schedule: Schedule, budget: int, most: int) -> None:
        while budget and self._waiting and len(self._running) < self.config.max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            hits = self._find_cached(sequence)
            if hits is None:
                break
            del self._waiting[sequence.request.request_id]
            self._running[sequence.request.request_id] = sequence
            sequence.status = Status.RUNNING
            self.pool.share(hits)
            sequence.num_registered = len(hits)
            sequence.num_computed = len(hits) * self.config.block_size
            self._count_query(sequence)
            count = min(sequence.num_tokens - sequence.num_computed, budget, most)
            end = sequence.num_computed + count
            sequence.blocks = hits + self.pool.allocate(self._blocks_for(end) - len(hits))
            schedule.batch.append((sequence, count))
            self._register(sequence, end)
            budget -= count

    def _may_admit(self) -> bool:
        """Whether the next step could admit somebody, as far as is known without looking for him."""
        if not self._waiting or len(self._running) >= self.config.max_num_seqs:
            return False
        return self._refused_at != (next(iter(self._waiting.values())), self.pool.releases)

    def _find_cached(self, sequence: SequenceState) -> list[int] | None:
        """Its cached prefix; None while the whole of it would not fit (a part would only be preempted)."""
        if self._refused_at == (sequence, self.pool.releases):
            return None
        hits: list[int] = []
        if self.config.enable_prefix_caching and not sequence.request.skip_cache_read:
            limit = cacheable_blocks(sequence.num_tokens, self.config.block_size)
            hits = self.pool.lookup(sequence.keys, limit)
        if not self.pool.fits(self._blocks_for(sequence.num_tokens) - len(hits), hits):
            self._refused_at = (sequence, self.pool.releases)
            return None
        return hits

    def _register(self, sequence: SequenceState, end: int) -> None:
        """Make its blocks that are full once positions up to `end` are computed findable."""
        size = self.config.block_size
        full = end // size
        first = sequence.num_registered
        if full > first and self.config.enable_prefix_caching:
            tokens = sequence.token_ids(first * size, full * size)
            keys = sequence.keys[first:full]
            parent = sequence.keys[first - 1] if first else None
            self.pool.register(sequence.request.scope, sequence.blocks[first:full], keys, parent, tokens)
            sequence.num_registered = full

    def _count_query(self, sequence: SequenceState) -> None:
        """Cache statistics are about first admissions; reading back after a preemption is no hit."""
        if sequence.num_cached_tokens is not None:
            return
        sequence.num_cached_tokens = sequence.num_computed
        if self.config.enable_prefix_caching and not sequence.request.skip_cache_read:
            self.counters.prefix_cache_queries += sequence.num_tokens
            self.counters.prefix_cache_hits += sequence.num_computed

    def _preempt(self, request_id: str, victim: SequenceState) -> None:
        self.pool.release(victim.blocks)
        victim.forget_computed()
        self._waiting[request_id] = victim
        self._waiting.move_to_end(request_id, last=False)
        self.counters.preemptions += 1

    def _free(self, sequence: SequenceState) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.status = Status.FINISHED

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)


def check_config(config: EngineConfig) -> None:
    """Raises ValueError where a sequence could wait for ever; the message says what to change."""
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({config.max_num_seqs}), or some sequence gets no token in a step"
        )
    if config.max_num_seqs < 1:
        raise ValueError("max_num_seqs must be at least 1")
    if not 0 <= config.long_prefill_token_threshold <= config.max_model_len:
        raise ValueError(
            f"long_prefill_token_threshold ({config.long_prefill_token_threshold}) must be 0, for none, "
            f"or at most max_model_len ({config.max_model_len})"
        )
    capacity = config.num_blocks * config.block_size
    if config.max_model_len > capacity:
        raise ValueError(
            f"a sequence of max_model_len {config.max_model_len} tokens does not fit {config.num_blocks} "
            f"blocks of {config.block_size}: lower it to {capacity}, or raise num_blocks"
        )
