"""A discrete-event simulation of replicas in front of a fleet: arrivals, steps, events and loads on one
timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.replay.content import Content
from benchmarks.replay.engines import Answers, Timeline, Worker, named, new_ledger, virtual_engine
from benchmarks.replay.outcome import Outcome
from benchmarks.replay.replica import Decision, Replica
from benchmarks.replay.slices import SlicedPrompts
from gateway.kv.events import EventBatch
from gateway.routing.policy import Policy
from gateway.routing.slicing import NO_SLICING, Slicing
from gateway.types import BlockKey
from workers.profiles import Profile
from workers.sequence import SequenceState

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds between what happens and who hears of it."""

    event_s: float = 0.01
    """From an engine's step to a replica's index."""
    word_s: float = 0.005
    """From one replica's word to the others: a placement with its worker's load, or all loads."""
    load_s: float = 0.05
    """How often a replica tells the others all that it has in flight (gateway.fleet.sharing, its tick)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is replayed. `profiles` is one engine each; `speed` divides the trace's own times."""

    profiles: Sequence[Profile]
    speed: float
    replicas: int = 1
    max_ttft_s: float = 0.0
    """Requests are refused that nobody is expected to answer within so many seconds; 0: none."""
    slicing: Slicing = NO_SLICING
    shared: bool = True
    """Replicas share events, placements and loads; else each knows only what it decided itself."""
    delays: Delays = Delays()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    outcomes: list[Outcome]
    busy_s: float
    preemptions: int
    refused: Sequence[float] = ()
    """When those came that were refused; they are no outcomes."""


class Arrivals:
    """Who asks when: a first turn at its time, a next one also not before its answer is there."""

    def __init__(self, content: Content, speed: float, timeline: Timeline, ask: Callable[[int, float], None]):
        self._requests = content.trace.requests
        self._speed = speed
        self._timeline = timeline
        self._ask = ask
        self._waiting: dict[int, list[int]] = {}
        for number, request in enumerate(self._requests):
            if request.parent is None:
                self._put(number, request.arrival / speed)
            else:
                self._waiting.setdefault(request.parent, []).append(number)

    def answered(self, number: int, now: float) -> None:
        for child in self._waiting.pop(number, ()):
            request = self._requests[child]
            self._put(child, max(request.arrival / self._speed, now + request.think_s / self._speed))

    def _put(self, number: int, when: float) -> None:
        self._timeline.at(when, lambda now: self._ask(number, now))


class Simulation:
    """`make_policy` is called once for each replica, whose randomness it gets."""

    def __init__(
        self,
        content: Content,
        setup: Setup,
        make_policy: Callable[[Random], Policy],
        progress: Progress | None = None,
    ) -> None:
        self._content = content
        self._setup = setup
        self._progress = progress
        self._timeline = Timeline()
        self._answers = Answers(content)
        self._decisions: dict[int, Decision] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._refused: list[float] = []
        self._done = 0
        random = Random(setup.seed)
        capacity = [profile.num_blocks for profile in setup.profiles]
        self._replicas = [
            Replica(
                f"replica-{number}",
                capacity,
                make_policy(Random(random.random())),
                Random(random.random()),
                content.block_size,
                blind=not setup.shared,
                max_ttft=setup.max_ttft_s,
                slicing=setup.slicing,
            )
            for number in range(setup.replicas)
        ]
        self._spread = Random(random.random())
        self._workers = [
            Worker(
                number,
                virtual_engine(profile, content, self._answers, self._listener(number)),
                self._timeline,
                self._on_token,
            )
            for number, profile in enumerate(setup.profiles)
        ]
        self._sliced = {
            replica.name: SlicedPrompts(len(self._workers), self._timeline, self._send)
            for replica in self._replicas
        }
        self._arrivals = Arrivals(content, setup.speed, self._timeline, self._ask)
        self._telling = setup.replicas > 1 and setup.shared
        if self._telling:
            self._timeline.at(0.0, self._tell_loads)

    def run(self) -> Run:
        self._timeline.run()
        return Run(
            [self._outcomes[number] for number in sorted(self._outcomes)],
            sum(worker.busy_s for worker in self._workers),
            sum(worker.engine.stats().preemptions for worker in self._workers),
            self._refused,
        )

    def _ask(self, number: int, now: float) -> None:
        request = self._content.trace.requests[number]
        replica = self._replicas[0]
        if len(self._replicas) > 1:
            replica = self._spread.choice(self._replicas)
        full = self._content.full_keys(number)
        decision = replica.decide(
            now,
            request.input_tokens,
            self._content.cacheable_keys(number),
            full,
            request.output_tokens,
            request.session,
        )
        if decision is None:
            self._refused.append(now)
            self._over(number, now)
            return
        self._decisions[number] = decision
        self._outcomes[number] = Outcome(
            request.input_tokens,
            request.output_tokens,
            now,
            decision.worker,
            promised_tokens=decision.route.matched_tokens,
        )
        if self._telling:
            self._tell_placement(replica, decision, full, now)
        sliced = self._sliced[replica.name]
        if decision.slices is not None:
            sliced.begin(number, decision.worker, decision.slices, decision.route, now)
            return
        decision.timed = sliced.whole(number, decision.worker, decision.route, now)

    def _send(self, number: int, tokens: int | None, now: float) -> None:
        """To its worker: the first `tokens` of the prompt, or the request itself."""
        keys = list[int](self._content.full_keys(number))
        if tokens is None:
            request = self._answers.request(number)
        else:
            request = self._answers.slice(number, tokens)
            del keys[tokens // self._content.block_size :]
        self._workers[self._decisions[number].worker].add(request, keys, now)

    def _on_token(self, worker: int, sequence: SequenceState, now: float) -> None:
        number, tokens = named(sequence.request.request_id)
        outcome, decision = self._outcomes[number], self._decisions[number]
        sliced, cached = self._sliced[decision.replica.name], sequence.num_cached_tokens or 0
        if tokens is not None:
            sliced.slice_over(number, tokens, cached, now)
            return
        if outcome.first_token is None:
            outcome.first_token = now
            outcome.cached_tokens = max(0, cached - sliced.answered(number, worker, now))
            decision.first_token(outcome.ttft, outcome.prompt_tokens, outcome.cached_tokens)
        if sequence.finish_reason is not None:
            outcome.finished = now
            decision.finished()
            del self._decisions[number]
            self._answers.forget(number)
            self._over(number, now)

    def _over(self, number: int, now: float) -> None:
        """Answered or refused: a next turn may come."""
        self._done += 1
        if self._progress is not None:
            self._progress(1)
        self._arrivals.answered(number, now)

    def _listener(self, worker: int) -> Callable[[EventBatch], None]:
        ledger = new_ledger(self._content.block_size)
        delay = self._setup.delays.event_s

        def on_batch(batch: EventBatch) -> None:
            changes = ledger.apply(batch)

            def deliver(_now: float) -> None:
                for replica in self._replicas:
                    replica.hear(worker, changes)

            self._timeline.at(batch.ts + delay, deliver)

        return on_batch

    def _tell_placement(
        self, author: Replica, decision: Decision, full: Sequence[BlockKey], now: float
    ) -> None:
        """It takes the load of its worker along, so that nobody sees the promise without its price."""
        known = decision.route.matched_tokens // self._content.block_size
        worker = decision.route.worker
        load = {worker: author.vector()[worker]}

        def hear(then: float) -> None:
            for replica in self._replicas:
                if replica is not author:
                    replica.some_peer_loads(author.name, load)
                    replica.placed_by_peer(decision.worker, full[known:], then)

        self._timeline.at(now + self._setup.delays.word_s, hear)

    def _tell_loads(self, now: float) -> None:
        vectors = [(author, author.vector()) for author in self._replicas]

        def hear(_then: float) -> None:
            for author, vector in vectors:
                for replica in self._replicas:
                    if replica is not author:
                        replica.peer_loads(author.name, vector)

        self._timeline.at(now + self._setup.delays.word_s, hear)
        if self._done < len(self._content.trace.requests):
            self._timeline.at(now + self._setup.delays.load_s, self._tell_loads)
