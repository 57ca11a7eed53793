"""The engine: a scheduler, a block pool and a runner, one step at a time. No threads, no I/O, no waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.kv.events import EventBatch
from gateway.types import BlockKey, Clock
from workers.blocks import BlockPool
from workers.cache_events import DEFAULT_HASH_MASK, CacheEventLog
from workers.scheduler import Scheduler
from workers.types import EngineConfig, EngineRequest, Runner, TokenOutput

OnEvents = Callable[[EventBatch], None]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A moment's view. Token counts are totals since the start."""

    running: int
    waiting: int
    kv_cache_usage: float
    """Share of blocks in use, 0…1; cached blocks that nobody uses count as free, as in vLLM."""
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int
    """Those of them that were found."""
    preemptions: int
    prompt_tokens: int
    """Prompt tokens of sequences that have got their first token."""
    generation_tokens: int


def make_scheduler(
    config: EngineConfig,
    eos_token_ids: frozenset[int],
    *,
    events: bool,
    hash_mask: int = DEFAULT_HASH_MASK,
) -> tuple[Scheduler, CacheEventLog | None]:
    """Scheduler, pool and, where anybody listens, the log of the pool's events. Raises ValueError for a
    config that cannot work."""
    log = CacheEventLog(config.block_size, hash_mask=hash_mask) if events else None
    pool = BlockPool(config.num_blocks, config.block_size, log)
    return Scheduler(config, pool, eos_token_ids), log


def stats_of(scheduler: Scheduler) -> EngineStats:
    counters = scheduler.counters
    pool = scheduler.pool
    return EngineStats(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        kv_cache_usage=pool.num_used / pool.num_blocks,
        prefix_cache_queries=counters.prefix_cache_queries,
        prefix_cache_hits=counters.prefix_cache_hits,
        preemptions=counters.preemptions,
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
    )


class Engine:
    """Single-threaded: every call comes from the thread that steps.

    `on_events` gets one batch a step in which anything happened to the cache, stamped by `clock` (Unix
    seconds). `hash_mask` makes this process's block hashes its own.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        on_events: OnEvents | None = None,
        clock: Clock = time.time,
        *,
        hash_mask: int = DEFAULT_HASH_MASK,
    ) -> None:
        self.config = config
        self.runner = runner
        self.scheduler, self._log = make_scheduler(
            config, runner.eos_token_ids, events=on_events is not None, hash_mask=hash_mask
        )
        self._on_events = on_events
        self._clock = clock

    def __repr__(self) -> str:
        s = self.scheduler
        return f"<Engine {self.config.model} {s.num_running} running, {s.num_waiting} waiting, {s.pool!r}>"

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def check(self, request: EngineRequest) -> None:
        """Raises RequestRefused for what can never be served. Reads nothing that changes: any thread."""
        self.scheduler.check(request)

    def add(self, request: EngineRequest, prompt_keys: Sequence[BlockKey] | None = None) -> None:
        """Raises RequestRefused. `prompt_keys`: see SequenceState."""
        self.scheduler.add(request, prompt_keys)

    def abort(self, request_id: str) -> TokenOutput | None:
        """Its last output, or None where it is not here; its blocks are free at once."""
        return self.scheduler.abort(request_id)

    def step(self) -> list[TokenOutput]:
        """One new token of every sequence whose known tokens are all computed now; [] without work."""
        if not self.scheduler.has_work:
            return []
        schedule = self.scheduler.schedule()
        sampled = self.runner.execute(schedule.items())
        self.scheduler.complete(schedule, [sample.token_id if sample else None for sample in sampled])
        self._publish()
        return [
            seq.newest(sample) for (seq, _), sample in zip(schedule.batch, sampled, strict=True) if sample
        ]

    def reset_prefix_cache(self) -> bool:
        """False, and nothing done, while blocks are in use. As in vLLM, the event that tells of it travels
        with the next step's."""
        return self.scheduler.pool.reset()

    def stats(self) -> EngineStats:
        return stats_of(self.scheduler)

    def check_integrity(self) -> None:
        """Between steps; raises AssertionError where counters and reality differ."""
        self.scheduler.check_integrity()

    def _publish(self) -> None:
        if self._log is not None and self._on_events is not None:
            events = self._log.take()
            if events:
                self._on_events(EventBatch(ts=self._clock(), events=events, dp_rank=0))
