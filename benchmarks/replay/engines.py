"""The fleet of a replay: virtual engines, when each one's step ends, and what they say of their caches."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import cast

from benchmarks.replay.content import MODEL, SCOPE, Content
from gateway.events.ledger import Ledger
from gateway.index.changes import Change
from gateway.kv.events import EventBatch
from workers.profiles import Profile
from workers.sequence import SequenceState
from workers.types import EngineRequest, SamplingParams
from workers.virtual import VirtualEngine

OnChanges = Callable[[int, list[Change]], None]


_ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True)
_NOTHING = 0


def named(request_id: str) -> tuple[int, int | None]:
    """Of which request it is, and of a slice how many tokens of its prompt."""
    number, _slash, tokens = request_id.partition("/")
    return int(number), int(tokens) if tokens else None


class Timeline:
    """What will happen, by time; equal times in the order in which they were put."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()

    def at(self, when: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def run(self) -> None:
        heap = self._heap
        while heap:
            when, _order, action = heapq.heappop(heap)
            self.now = when
            action(when)


class Worker:
    """One engine on the timeline. `on_token` hears of first tokens and ends, `on_changes` of its cache."""

    def __init__(
        self,
        number: int,
        engine: VirtualEngine,
        timeline: Timeline,
        on_token: Callable[[int, SequenceState, float], None],
    ) -> None:
        self.number = number
        self.engine = engine
        self.busy_s = 0.0
        self.stalled = False
        """It has work and could schedule none of it: others hold the blocks that it needs."""
        self._timeline = timeline
        self._on_token = on_token
        self._began = 0.0
        self._version = 0

    def add(self, request: EngineRequest, keys: list[int], now: float) -> None:
        self._cut(now)
        self.engine.add(request, keys)  # type: ignore[arg-type]
        if not self.engine.busy:
            self.begin(now)

    def begin(self, now: float) -> None:
        end = self.engine.begin(now)
        if end is None:
            return
        self._began = now
        if end == now and not self.engine.scheduler.num_running:
            self.engine.finish()
            self.stalled = True
            return
        self.stalled = False
        self._expect(end)

    def _cut(self, now: float) -> None:
        """Something is about to change: quiet steps beyond the one in progress must not be taken."""
        end = self.engine.interrupt(now)
        if end is not None:
            self._expect(end)

    def _expect(self, end: float) -> None:
        self._version += 1
        version = self._version
        self._timeline.at(end, lambda now: self._finish(now, version))

    def _finish(self, now: float, version: int) -> None:
        if version != self._version:
            return
        self.busy_s += now - self._began
        for sequence in self.engine.finish():
            if len(sequence.output) == 1 or sequence.finish_reason is not None:
                self._on_token(self.number, sequence, now)
        if not self.engine.busy:  # an end may have brought the next request at once
            self.begin(now)


class Answers:
    """What each running request will say."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._running: dict[str, Iterator[int]] = {}

    def request(self, number: int) -> EngineRequest:
        name = str(number)
        self._running[name] = self._content.answer(number)
        sampling = SamplingParams(
            max_tokens=self._content.trace.requests[number].output_tokens, ignore_eos=True
        )
        # to the engine it is as good as a tuple: it asks for lengths and slices
        prompt = cast("tuple[int, ...]", self._content.tokens(number))
        return EngineRequest(name, prompt, sampling, SCOPE)

    def slice(self, number: int, tokens: int) -> EngineRequest:
        """The first `tokens` of its prompt, and one token that nobody reads."""
        beginning = cast("tuple[int, ...]", self._content.tokens(number).first(tokens))
        return EngineRequest(f"{number}/{tokens}", beginning, _ONE_TOKEN, SCOPE)

    def next_tokens(self, sequence: SequenceState, count: int) -> list[int]:
        if named(sequence.request.request_id)[1] is not None:
            return [_NOTHING]
        return list(islice(self._running[sequence.request.request_id], count))

    def forget(self, number: int) -> None:
        del self._running[str(number)]


def virtual_engine(
    profile: Profile, content: Content, answers: Answers, on_batch: Callable[[EventBatch], None] | None
) -> VirtualEngine:
    """`profile` in blocks of the replay's size."""
    return VirtualEngine(profile.engine_config(MODEL), profile.timing, answers.next_tokens, on_batch)


def new_ledger(block_size: int) -> Ledger:
    return Ledger(MODEL, block_size=block_size)
