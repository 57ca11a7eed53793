"""From a request to a worker, step by step: resolve → read (render, tokenise, keys) → weigh (filter, match,
score, pick) → take (lease, placement). Between weighing and taking lies no await, so nobody else's decision
can make the load stale that this one was made on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

import msgspec

from gateway.errors import GatewayError, Overloaded, Unavailable
from gateway.fleet.bounds import LearnedBounds
from gateway.fleet.breaker import Verdict
from gateway.fleet.guards import Guards
from gateway.fleet.load import Lease, LoadBoard, WorkerLoad
from gateway.fleet.rates import PrefillRates, attended_pairs
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker
from gateway.index.base import IndexReader, IndexWriter
from gateway.prompt.base import PromptEncoder, PromptRequest
from gateway.routing.admission import Admission
from gateway.routing.caller import ANYBODY, Caller
from gateway.routing.candidates import (
    NO_REFUSALS,
    RETRY_AFTER_S,
    Refusal,
    all_take_more,
    nobody_left,
    refusal,
    worth_waiting,
)
from gateway.routing.choose import pick
from gateway.routing.feedback import Feedback
from gateway.routing.in_time import Expected, expected, first_in_time
from gateway.routing.last_blocks import LastBlocks
from gateway.routing.last_resort import last_resort
from gateway.routing.media import MediaMemory, likely_tokens
from gateway.routing.observer import NullObserver, RoutingObserver
from gateway.routing.promises import Announce, Promises
from gateway.routing.reader import Reader
from gateway.routing.route import Notes, Outcome, Route
from gateway.routing.slice_refusals import SliceRefusals
from gateway.routing.slicing import NO_SLICING, Sliced, Slicing, plan
from gateway.routing.slow_start import slowed
from gateway.routing.table import PolicyTable
from gateway.routing.upkeep import IndexMembers, Upkeep
from gateway.routing.weighing import Reading, Weighing
from gateway.types import Clock, Usage, WorkerId

_VERDICTS = {
    Outcome.UPSTREAM_ERROR: Verdict.FAILURE,
    Outcome.TIMEOUT: Verdict.FAILURE,
}


class RoutingIndex(IndexMembers, IndexReader, IndexWriter, Protocol):
    """Both sides of one index."""


class Router:
    """`encoders` gives a base model's way to tokens, or None where there is none (then load decides).
    `upkeep` is to be subscribed to the registry by whoever puts the parts together. Without `admission` a
    full fleet refuses at once. With `max_ttft` it refuses whom nobody is expected to answer within so many
    seconds. `announce` tells other replicas of a placement; it returns at once."""

    def __init__(
        self,
        registry: Registry,
        board: LoadBoard,
        guards: Guards,
        index: RoutingIndex,
        policies: PolicyTable,
        encoders: Callable[[str], PromptEncoder | None],
        *,
        clock: Clock,
        random: Random,
        held: Callable[[], Mapping[WorkerId, int]] | None = None,
        admission: Admission | None = None,
        observer: RoutingObserver | None = None,
        announce: Announce | None = None,
        max_ttft: float = 0.0,
        slicing: Slicing = NO_SLICING,
        slice_refusals: SliceRefusals | None = None,
    ) -> None:
        self._registry = registry
        self._board = board
        self._guards = guards
        self._index = index
        self.policies = policies
        self._clock = clock
        self._random = random
        self._admission = admission
        self.max_ttft = max_ttft
        self._slicing = slicing
        self._slice_refusals = slice_refusals if slice_refusals is not None else SliceRefusals(clock)
        self._observer = observer or NullObserver()
        self._promises = Promises(index, announce)
        self._media = MediaMemory(clock)
        self._reader = Reader(registry, encoders, self._media)
        self.read = self._reader.read
        self.rates = PrefillRates()
        self._bounds = LearnedBounds()
        self._last_blocks = LastBlocks(index)
        self.feedback = Feedback(index, self._observer, self._last_blocks)
        self.upkeep = Upkeep(
            registry,
            board,
            guards,
            self.rates,
            index,
            self.feedback,
            encoders,
            held,
            self._bounds,
            self._slice_refusals.forget,
        )

    async def route(
        self,
        request: PromptRequest,
        *,
        exclude: frozenset[WorkerId] = frozenset(),
        caller: Caller = ANYBODY,
    ) -> Route:
        """Raises ModelNotFound, Unavailable or Overloaded (see RouterProtocol)."""
        began = self._clock()
        try:
            reading = await self.read(request, caller)
            route, policy = await self._place(reading, exclude, caller)
        except GatewayError as error:
            self._observer.refused(request.model, type(error).__name__)
            raise
        self._observer.decided(reading.target.model, policy, route.reason, self._clock() - began)
        return route

    def finish(
        self,
        route: Route,
        outcome: Outcome,
        usage: Usage | None,
        ttft: float | None,
        *,
        retry_after: float | None = None,
        blameless: bool = False,
    ) -> None:
        """What the end of a try teaches: breaker, overload mark, prefill rates, index. Of a worker that has
        left nothing is learned any more: it would be kept for ever."""
        now = self._clock()
        if self._registry.get(route.worker) is None:
            return
        verdict = Verdict.SUCCESS if outcome is Outcome.OK else _VERDICTS.get(outcome, Verdict.NEUTRAL)
        if blameless:
            verdict = Verdict.NEUTRAL
        self._guards.record(
            route.worker, verdict, now, probe=route.notes.probe, answered=route.lease.answered
        )
        if outcome is Outcome.BUSY:
            self._guards.busy(route.worker, now, retry_after)
            self._bounds.refused(route.lease.load, now)
        elif outcome is Outcome.OK:
            self._bounds.answered(route.lease.load, now)
        if self._promises.made:
            self._promises.keep()
        if outcome is not Outcome.OK:
            self._promises.settle(route, outcome, now)
        if route.notes.watch is not None:
            self._index.unwatch(route.worker, route.notes.watch)
        if usage is None:
            return
        self.feedback.judge(route, usage)
        if outcome is Outcome.OK and route.notes.media:
            self._media.learn(route.notes.media, route.worker, usage.prompt_tokens)
        if outcome is Outcome.OK and ttft is not None:
            cached = route.matched_tokens if usage.cached_tokens is None else usage.cached_tokens
            uncached = max(0, usage.prompt_tokens - cached)
            pairs = attended_pairs(usage.prompt_tokens, cached)
            self.rates.observe(route.worker, route.notes.ahead_tokens + uncached, ttft, pairs)

    def weigh(
        self, reading: Reading, exclude: Collection[WorkerId] = (), random: Random | None = None
    ) -> Weighing:
        """All of the target's workers, now. Changes nothing but the clockwork of random draws."""
        now = self._clock()
        if now >= self.upkeep.next_at:
            self.upkeep.do(now)
        if self._promises.made:
            self._promises.keep()
        last = False
        workers = self._reader.workers_now(reading)
        everybody = self._board.of(workers)
        if not exclude and not self._guards.suspects and all_take_more(workers, everybody):
            candidates, loads, refusals = list(workers), everybody, NO_REFUSALS
        else:
            candidates, loads, refusals = self._sorted_out(workers, everybody, exclude, now)
            if not candidates and (untrusted := last_resort(workers, everybody, self._guards, exclude, now)):
                refusals, last = untrusted.refusals, bool(untrusted.chosen)
                candidates = [workers[i] for i in untrusted.chosen]
                loads = [everybody[i] for i in untrusted.chosen]
        matches = self._match(reading, now)
        matched = [matches.get(worker.id, 0) for worker in candidates] if matches else [0] * len(candidates)
        likely, by_media = matched, False
        if reading.media:
            holders = self._media.holders(reading.media)
            names = [worker.id for worker in candidates]
            likely = likely_tokens(reading.media, holders, names, matched, reading.target.unit)
        slot = self.policies.slot(reading.target.model)
        scores = slot.policy.score(reading.shape, loads, likely) if loads else []
        behind: tuple[WorkerId, ...] = ()
        if self._guards.starting and loads and not last:
            scores, behind = slowed(scores, [worker.id for worker in candidates], likely, self._guards, now)
        winner = pick(scores, loads, likely, random or self._random) if loads else None
        if reading.media and winner is not None:
            by_media = likely[winner] > matched[winner] and candidates[winner].id in holders
        return Weighing(
            workers,
            candidates,
            loads,
            matched,
            scores,
            refusals,
            matches,
            slot,
            winner,
            by_media,
            last,
            behind,
        )

    def _sorted_out(
        self,
        workers: Sequence[Worker],
        loads: Sequence[WorkerLoad],
        exclude: Collection[WorkerId],
        now: float,
    ) -> tuple[list[Worker], list[WorkerLoad], dict[WorkerId, Refusal]]:
        candidates: list[Worker] = []
        theirs: list[WorkerLoad] = []
        refusals: dict[WorkerId, Refusal] = {}
        for worker, load in zip(workers, loads, strict=True):
            refused = refusal(worker, load, self._guards, exclude, now)
            if refused is None:
                candidates.append(worker)
                theirs.append(load)
            else:
                refusals[worker.id] = refused
        return candidates, theirs, refusals

    async def _place(
        self, reading: Reading, exclude: frozenset[WorkerId], caller: Caller
    ) -> tuple[Route, str]:
        """The route, and the name of the policy that chose it. Queues where all candidates are full; a queued
        request is weighed again when its turn comes."""
        admission, place = self._admission, None
        waiting = admission.waiting if admission is not None else ()
        try:
            while True:
                overtaking = place is None and not exclude and waiting and reading.pool in waiting
                if not overtaking:
                    weighing = self.weigh(reading, exclude)
                    if self.max_ttft and weighing.winner is not None and not exclude:
                        weighing = self.in_time(reading, weighing)
                        if weighing.winner is None:
                            raise self._too_late(reading, weighing)
                    if weighing.winner is not None:
                        return self._take(reading, weighing, weighing.winner), weighing.slot.policy.name
                    refusals = list(weighing.refusals.values())
                    # one that was tried elsewhere already has waited enough
                    if admission is None or exclude or not worth_waiting(refusals):
                        raise nobody_left(reading.target.name, refusals)
                assert admission is not None  # noqa: S101 - somebody waits in it, or it was looked at
                place = place or admission.enter(reading.pool, caller, reading.prompt_tokens)
                await admission.turn(place)
        except Overloaded:
            if (untrusted := self._untrusted(reading)) is not None:
                raise untrusted from None
            raise
        finally:
            if place is not None and admission is not None:
                admission.leave(place)

    def in_time(self, reading: Reading, weighing: Weighing) -> Weighing:
        """The same with a winner that is expected to answer within `max_ttft`, or none."""
        if not self.max_ttft or weighing.winner is None or weighing.last_resort:
            return weighing
        times = self._expected(reading, weighing)
        winner = first_in_time(weighing.scores, times, weighing.winner, self.max_ttft)
        return weighing if winner == weighing.winner else msgspec.structs.replace(weighing, winner=winner)

    def _expected(self, reading: Reading, weighing: Weighing) -> list[Expected | None]:
        """By candidate."""
        prompt, rates = reading.prompt_tokens, self.rates
        return [
            expected(load, max(0, prompt - matched), rates)
            for load, matched in zip(weighing.loads, weighing.matched, strict=True)
        ]

    def _too_late(self, reading: Reading, weighing: Weighing) -> Overloaded:
        soonest = min(time.ttft for time in self._expected(reading, weighing) if time is not None)
        return Overloaded(
            f"no worker of model {reading.target.name!r} is expected to give a first token within "
            f"{self.max_ttft:g} s, the soonest would in {soonest:.1f} s",
            retry_after=max(RETRY_AFTER_S, soonest - self.max_ttft),
        )

    def _take(self, reading: Reading, weighing: Weighing, winner: int) -> Route:
        now = self._clock()
        worker, load = weighing.candidates[winner], weighing.loads[winner]
        matched, prompt_tokens = weighing.matched[winner], reading.shape.prompt_tokens
        if weighing.slot.chosen is not None:
            weighing.slot.chosen(reading.shape, weighing.loads, weighing.matched, winner)
        if self._guards.starting:
            self._guards.given(worker.id, [candidate.id for candidate in weighing.candidates], now)
        probe = self._guards.begin(worker.id, now)
        sliced = self.sliced(reading, weighing, winner) if self._slicing.after_s else None
        held_blocks, kept_back, on_trust = self._held(reading, worker, matched)
        notes = Notes(
            probe=probe,
            exact=reading.exact,
            comparable=reading.comparable,
            media=reading.media,
            ahead_tokens=load.waiting_tokens + load.peer_waiting_tokens,
            unit=reading.target.unit,
            held_blocks=held_blocks,
            watch=self._index.watch(worker.id, reading.keys[0][held_blocks - 1]) if held_blocks else None,
            kept_back=kept_back,
            on_trust=on_trust,
            epoch=self._index.epoch(worker.id),
            placed=self._promises.make(worker, reading, matched, now),
            placed_at=now,
            weighing=weighing,
            otherwise=nobody_left(reading.target.name, weighing.refusals.values())
            if weighing.last_resort
            else None,
            sliced=sliced,
        )
        lease = Lease.take(
            load,
            prompt_tokens=prompt_tokens,
            matched_tokens=matched,
            keys=reading.shape.keys,
            block_size=reading.target.unit,
            yielding_tokens=0 if sliced is None else sliced.plan.yields_tokens,
            on_release=self._admission.wake_all if self._admission is not None else None,
        )
        if notes.probe:
            lease.on_first_byte = partial(self._probe_answered, worker.id)
        return Route(
            worker=worker.id,
            url=worker.spec.url,
            model=reading.target.name,
            lease=lease,
            prompt_tokens=prompt_tokens,
            matched_tokens=matched,
            reusable_tokens=max(matched, *weighing.matches.values()) if weighing.matches else matched,
            keys=reading.keys,
            dp_rank=worker.spec.dp_rank,
            reason=weighing.reason if reading.prompts else weighing.reason_unread,
            notes=notes,
        )

    def _held(self, reading: Reading, worker: Worker, matched: int) -> tuple[int, int, int]:
        """What an answer will be judged by (`Notes`): blocks that it holds by its own word, tokens of one
        more that is not promised, tokens of the last one where that is promised on trust."""
        if len(reading.keys) != 1 or reading.skips_cache:
            return 0, 0, 0
        keys, unit = reading.keys[0], reading.target.unit
        held = self._index.held_depth(worker.id, keys[: matched // unit]) if matched else 0
        info, last = worker.info, self._last_blocks
        if info is None or not info.speculates:
            return held, 0, 0
        kept_back = last.kept_back(worker.id, info, keys, matched, unit)
        return held, kept_back, last.on_trust(worker.id, info) if matched else 0

    def sliced(self, reading: Reading, weighing: Weighing, winner: int) -> Sliced | None:
        """How its prompt goes there in slices; None: in one piece, as most do. It takes an engine that tells
        of its blocks, so that what a slice leaves is known to be kept, that has room for the whole, and that
        is no breaker's to probe."""
        worker, matched, prompt = weighing.candidates[winner], weighing.matched[winner], reading.prompt_tokens
        info, answer = worker.info, reading.shape.max_tokens or 1
        if worker.spec.events is None or not reading.exact or len(reading.prompts) != 1 or info is None:
            return None
        if reading.whole:
            return None
        if not self._slice_refusals.takes(worker.id) or self._guards.probes(worker.id, self._clock()):
            return None
        if info.most_tokens is not None and prompt + answer > info.most_tokens:
            return None  # it will be refused
        found = plan(
            self._slicing,
            prompt_tokens=prompt,
            matched_tokens=matched,
            seconds=self.rates.seconds(worker.id, prompt - matched, attended_pairs(prompt, matched)),
            block=max(info.block_size, reading.target.unit),
            load=weighing.loads[winner],
            loads=weighing.loads,
        )
        return None if found is None else Sliced(found, reading.prompts[0].ids)

    def _probe_answered(self, worker: WorkerId) -> None:
        if self._registry.get(worker) is not None:
            self._guards.answered(worker)
        if self._admission is not None:
            self._admission.wake_all()

    def _untrusted(self, reading: Reading) -> Unavailable | None:
        """What to say to one that waited in vain for somebody to be trusted again; None where somebody is,
        and is only full."""
        if not self._guards.suspects:
            return None
        workers, now = self._reader.workers_now(reading), self._clock()
        found = last_resort(workers, self._board.of(workers), self._guards, (), now)
        return nobody_left(reading.target.name, found.refusals.values()) if found is not None else None

    def _match(self, reading: Reading, now: float) -> dict[WorkerId, int]:
        """Tokens that each worker of the target would serve from cache, over all prompts: whole engine blocks
        only, so a worker with larger blocks is credited less than the keys it holds; never more than it can
        hold at once, nor a last block that the engine may not have for this prompt."""
        unit = reading.target.unit
        found: dict[WorkerId, int] = {}
        if reading.skips_cache:
            return found
        for keys, prompt in zip(reading.keys, reading.prompts, strict=True):
            if not keys:
                continue
            for holder, depth in self._index.match(keys, now).items():
                worker = self._registry.get(holder)
                if worker is None or worker.info is None:
                    continue
                tokens, size, most = depth * unit, worker.info.block_size, worker.info.most_tokens
                if most is not None and tokens > most:
                    tokens = most
                tokens = tokens // size * size
                if worker.info.speculates:
                    tokens = self._last_blocks.promised(holder, worker.info, keys, prompt.ids, tokens, unit)
                if tokens:
                    found[holder] = found.get(holder, 0) + tokens
        return found

    def load_of(self, worker: Worker) -> WorkerLoad:
        return self._board.add(worker.id)
