"""The simulated twin in virtual time, for discrete-event simulation of whole fleets: the engine's own
scheduler and block pool, and a timing model that says when a step ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from gateway.kv.events import EventBatch
from gateway.types import BlockKey
from workers.engine import EngineStats, OnEvents, make_scheduler, stats_of
from workers.schedule import Schedule
from workers.sequence import SequenceState
from workers.timing import Timing
from workers.types import EngineConfig, EngineRequest, TokenOutput


class VirtualEngine:
    """Scheduler and pool in virtual time. Whoever drives it owns the clock and obeys three rules:

    - `begin(now)` starts a step and says when it ends; at that time comes `finish`, then the next `begin`;
    - whatever `add` or `abort` changes in between is preceded by `interrupt(now)`, which may bring the end
      forward;
    - where nothing but decoding can happen for a while, several steps are taken as one: that is why there is
      something to interrupt. Results are the same as step by step.

    `next_tokens` continues a sequence by so many tokens: a trace's answer, or anything deterministic.
    """

    def __init__(
        self,
        config: EngineConfig,
        timing: Timing,
        next_tokens: Callable[[SequenceState, int], Sequence[int]],
        on_events: OnEvents | None = None,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.config = config
        self.scheduler, self._log = make_scheduler(config, eos_token_ids, events=on_events is not None)
        self._timing = timing
        self._next_tokens = next_tokens
        self._on_events = on_events
        self._step: Schedule | None = None
        self._ends: list[float] = []
        """When each of the steps that are taken as one ends."""

    @property
    def busy(self) -> bool:
        """A step has begun and is not finished."""
        return self._step is not None

    def add(self, request: EngineRequest, prompt_keys: Sequence[BlockKey] | None = None) -> None:
        """Raises RequestRefused. `prompt_keys`: see SequenceState."""
        self.scheduler.add(request, prompt_keys)

    def abort(self, request_id: str) -> TokenOutput | None:
        return self.scheduler.abort(request_id)

    def begin(self, now: float) -> float | None:
        """When what begins now will be done; None where there is nothing to do."""
        if self._step is not None:
            raise ValueError("a step is in progress")
        if not self.scheduler.has_work:
            return None
        self._step = step = self.scheduler.schedule()
        shapes = step.shapes()
        end = now + self._timing.step_seconds(shapes)
        self._ends = [end]
        if self._log is None or not self._log.pending:
            context = sum(start + 1 for _count, start in shapes)
            for later in range(1, self.scheduler.quiet_steps(step)):
                end += self._timing.decode_seconds(len(shapes), context + later * len(shapes))
                self._ends.append(end)
        return end

    def interrupt(self, now: float) -> float | None:
        """Take no more steps than the one in progress at `now`; returns its end, None where none is."""
        if self._step is None:
            return None
        del self._ends[bisect_left(self._ends, now, hi=len(self._ends) - 1) + 1 :]
        return self._ends[-1]

    def finish(self) -> list[SequenceState]:
        """The sequences that got a token, those with a `finish_reason` for the last time. Call it at the time
        that `begin` or `interrupt` gave, which stamps the step's cache events."""
        if self._step is None:
            raise ValueError("no step is in progress")
        step, self._step = self._step, None
        if len(self._ends) > 1:
            advanced = self.scheduler.complete_quiet(step, len(self._ends), self._next_tokens)
        else:
            advanced = self.scheduler.complete(step, self._tokens(step))
        if self._log is not None and self._on_events is not None:
            events = self._log.take()
            if events:
                self._on_events(EventBatch(ts=self._ends[-1], events=events, dp_rank=0))
        return advanced

    def stats(self) -> EngineStats:
        """As of the last `finish`."""
        return stats_of(self.scheduler)

    def _tokens(self, step: Schedule) -> list[int | None]:
        draw = self._next_tokens
        return [
            draw(sequence, 1)[0] if sequence.num_computed + count == sequence.num_tokens else None
            for sequence, count in step.batch
        ]
