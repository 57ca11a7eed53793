"""The floor: what a fleet would do if its caches were one and its queue were perfect.

N engines share one pool of N × C blocks, so that every engine finds every block. Requests wait in one queue,
first come first served; an engine takes the next one as soon as the last it took has its first token, the one
with the fewest tokens to decode first. Nobody is let in before the pool has room for prompt and answer: the
first waits for it, and all others behind. No router can know more; what it adds are copies, and queues that
cannot be undone. Where memory and not prefill is short, separate queues can still be faster than this one in
the middle, since there short requests pass long ones that wait for room.
"""

from __future__ import annotations

from collections import deque

from benchmarks.replay.content import MODEL, Content
from benchmarks.replay.engines import Answers, Timeline, Worker, virtual_engine
from benchmarks.replay.outcome import Outcome
from benchmarks.replay.simulation import Arrivals, Progress, Run, Setup
from workers.blocks import BlockPool
from workers.scheduler import Scheduler
from workers.sequence import SequenceState


class PooledFleet:
    def __init__(self, content: Content, setup: Setup, progress: Progress | None = None) -> None:
        self._content = content
        self._progress = progress
        self._timeline = Timeline()
        self._answers = Answers(content)
        self._outcomes: dict[int, Outcome] = {}
        self._queue: deque[int] = deque()
        self._prefilling: set[int] = set()
        self._decoding = [0] * len(setup.profiles)
        self._reserved: dict[int, int] = {}
        """Blocks that requests in flight may still take."""
        self._pool = pool = BlockPool(
            sum(profile.num_blocks for profile in setup.profiles), content.block_size
        )
        self._workers = []
        for number, profile in enumerate(setup.profiles):
            engine = virtual_engine(profile, content, self._answers, None)
            engine.scheduler = Scheduler(profile.engine_config(MODEL), pool, frozenset())
            self._workers.append(Worker(number, engine, self._timeline, self._on_token))
        self._arrivals = Arrivals(content, setup.speed, self._timeline, self._ask)

    def run(self) -> Run:
        self._timeline.run()
        return Run(
            [self._outcomes[number] for number in sorted(self._outcomes)],
            sum(worker.busy_s for worker in self._workers),
            sum(worker.engine.stats().preemptions for worker in self._workers),
        )

    def _ask(self, number: int, now: float) -> None:
        request = self._content.trace.requests[number]
        self._outcomes[number] = Outcome(request.input_tokens, request.output_tokens, now, -1)
        self._queue.append(number)
        self._dispatch(now)

    def _dispatch(self, now: float) -> None:
        while self._queue and len(self._prefilling) < len(self._workers):
            if self._reserved and not self._has_room(self._queue[0]):
                return
            free = (w for w in range(len(self._workers)) if w not in self._prefilling)
            chosen = min(free, key=self._decoding.__getitem__)
            number = self._queue.popleft()
            self._reserved[number] = self._blocks(number, answer=True)
            self._outcomes[number].worker = chosen
            self._prefilling.add(chosen)
            keys = list[int](self._content.full_keys(number))
            self._workers[chosen].add(self._answers.request(number), keys, now)

    def _has_room(self, number: int) -> bool:
        keys = self._content.cacheable_keys(number)
        hits = self._pool.lookup(keys, len(keys))
        need = self._blocks(number, answer=True) - len(hits)
        return self._pool.fits(need + sum(self._reserved.values()), hits)

    def _blocks(self, number: int, *, answer: bool) -> int:
        request = self._content.trace.requests[number]
        tokens = request.input_tokens + (request.output_tokens if answer else 0)
        return -(-tokens // self._content.block_size)

    def _on_token(self, worker: int, sequence: SequenceState, now: float) -> None:
        number = int(sequence.request.request_id)
        outcome = self._outcomes[number]
        if outcome.first_token is None:
            outcome.first_token = now
            outcome.promised_tokens = outcome.cached_tokens = sequence.num_cached_tokens or 0
            self._prefilling.discard(worker)
            self._reserved[number] -= self._blocks(number, answer=False)
            self._decoding[worker] += outcome.prompt_tokens
        if sequence.finish_reason is None:
            self._dispatch(now)
            return
        outcome.finished = now
        del self._reserved[number]
        self._decoding[worker] -= outcome.prompt_tokens
        self._answers.forget(number)
        if self._progress is not None:
            self._progress(1)
        self._dispatch(now)
        self._arrivals.answered(number, now)
        for other in self._workers:  # blocks came free
            if other.stalled and not other.engine.busy:
                other.begin(now)
