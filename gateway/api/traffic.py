"""What the stream of requests says of itself: reuse, turns and divergence, by model. Never a prompt.

Everything is bounded: a sample of block keys, the last few thousand replies, the fingerprints of the last
few dozen prompts. Read through the admin port (`GET /admin/traffic`); `prefix-gateway doctor` judges it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from gateway.api.record import RequestRecord
from gateway.diagnosis.divergence import HEAD_TOKENS, Divergence, Head, divergence, head_in_steps
from gateway.diagnosis.turns import Conversations, Replies, Reply, TurnRow
from gateway.fleet.registry import Registry
from gateway.index.reuse import ReuseCurve, ReuseSampler
from gateway.prompt.approx import BytesEncoder
from gateway.prompt.base import PromptEncoder, TokenPrompt
from gateway.routing.route import Outcome
from gateway.types import Clock

PERIOD_S = 3600.0
"""Reuse is measured over such periods; the last whole one speaks until the new one is old enough."""
_OLD_ENOUGH_S = 900.0
_HEADS = 64
_HEAD_EVERY_S = 0.25
_STEPS_S = 0.0005
"""Of CPU, on a fingerprint at the end of one answer."""
_HEAD_SHARE = 0.005
"""Of a core's time that fingerprinting prompts may take: a millisecond or two each, more for long ones."""


@dataclass(frozen=True, slots=True)
class ReuseView:
    """Hit rates (0…1, by block) of one cache for all, against its size in blocks; `ceiling` never forgets."""

    window_s: float
    blocks: float
    distinct_blocks: float
    sampled_share: float
    ceiling: float
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    block_size: int
    capacity_blocks: int
    """Of all its workers, in blocks of `block_size`; 0 where one does not say."""
    hit_rate_now: float
    """What the curve gives for `capacity_blocks`."""
    reuse: ReuseView
    turns: tuple[TurnRow, ...]
    divergence: Divergence


@dataclass(slots=True)
class _Model:
    began: float
    sampler: ReuseSampler = field(default_factory=ReuseSampler)
    finished: tuple[ReuseCurve, float] | None = None
    """The last whole period's curve, and how long it lasted."""
    conversations: Conversations = field(default_factory=Conversations)
    replies: Replies = field(default_factory=Replies)
    heads: deque[Head] = field(default_factory=lambda: deque(maxlen=_HEADS))
    next_head: float = float("-inf")


@dataclass(slots=True)
class _Reading:
    """The beginning of a prompt on its way to its fingerprint."""

    model: _Model
    steps: Generator[None, None, Head]
    busy_s: float = 0.0


class Traffic:
    """A recorder of requests, and the ear at every encoder (`overhear`)."""

    def __init__(
        self,
        clock: Clock,
        *,
        salt: int,
        registry: Registry,
        most_models: int = 256,
        busy: Clock = time.thread_time,
    ) -> None:
        """`salt` makes fingerprints worthless to others. `busy` is CPU time."""
        self._clock = clock
        self._busy = busy
        self._salt = salt
        self._registry = registry
        self._most_models = most_models
        self._models: dict[str, _Model] = {}
        self._reading: _Reading | None = None

    def record(self, record: RequestRecord) -> None:
        if self._reading is not None:
            self._read_on()
        if not record.prefilled or not record.keys:
            return
        model = self._model(record.model)
        if model is None:
            return
        now = self._clock()
        if now - model.began >= PERIOD_S:
            model.finished = (model.sampler.curve(), now - model.began)
            model.sampler, model.began = ReuseSampler(), now
        held = record.reusable_tokens
        if held:
            held //= self._registry.unit_of(record.model)
        for keys in record.keys:
            # a match is known over all prompts of a request: each takes its part of it
            model.sampler.observe(keys, min(held, len(keys)))
            held = max(0, held - len(keys))
        turn = model.conversations.turn(record.keys[0])
        if record.outcome is Outcome.OK:
            cached = record.matched_tokens
            if record.usage is not None and record.usage.cached_tokens is not None:
                cached = record.usage.cached_tokens
            uncached = record.prompt_tokens - cached if record.prompt_tokens > cached else 0
            model.replies.add(Reply(turn, record.prompt_tokens, uncached, record.ttft_s, record.total_s))

    def overhear(self, name: str, encoder: PromptEncoder, prompts: Sequence[TokenPrompt]) -> None:
        """What `encoder` has made of one request for the model `name`."""
        if self._reading is None:
            known = self._models.get(name)
            if known is None or self._clock() >= known.next_head:
                self.heard(name, prompts, from_bytes=encoder.name == BytesEncoder.name)

    def heard(self, name: str, prompts: Sequence[TokenPrompt], *, from_bytes: bool) -> None:
        """The tokens of one request; of most nothing is kept. A fingerprint takes milliseconds: it is made
        step by step, one whenever an answer has ended, for this request is yet to be routed."""
        if self._reading is not None:
            return
        model, now = self._model(name), self._clock()
        if model is None or not prompts or now < model.next_head:
            return
        front = prompts[0].tokens[:HEAD_TOKENS]
        self._reading = _Reading(model, head_in_steps(front, self._salt, from_bytes=from_bytes))
        model.next_head = now + _HEAD_EVERY_S

    def _read_on(self, most_s: float = _STEPS_S) -> None:
        """Steps of the fingerprint that is being made, for `most_s` seconds."""
        reading, began = self._reading, self._busy()
        assert reading is not None  # noqa: S101 - asked before
        try:
            while self._busy() - began < most_s:
                next(reading.steps)
        except StopIteration as end:
            self._reading = None
            reading.model.heads.append(end.value)
        else:
            reading.busy_s += self._busy() - began
            return
        rest = (reading.busy_s + self._busy() - began) / _HEAD_SHARE
        reading.model.next_head = max(reading.model.next_head, self._clock() + rest)

    def view(self) -> dict[str, ModelTraffic]:
        """All at once: takes a good part of a second, so a busy event loop asks for it in two steps."""
        return self.judged({name: divergence(heads) for name, heads in self.heads().items()})

    def heads(self) -> dict[str, tuple[Head, ...]]:
        """The fingerprints of each model's last prompts, for a thread that compares them."""
        if self._reading is not None:
            self._read_on(inf)
        return {name: tuple(model.heads) for name, model in self._models.items()}

    def judged(self, found: Mapping[str, Divergence]) -> dict[str, ModelTraffic]:
        return {name: self._view(name, self._models[name], found[name]) for name in sorted(found)}

    def _model(self, name: str) -> _Model | None:
        model = self._models.get(name)
        if model is None and name and len(self._models) < self._most_models:
            model = self._models[name] = _Model(self._clock())
        return model

    def _view(self, name: str, model: _Model, found: Divergence) -> ModelTraffic:
        window = self._clock() - model.began
        curve = model.sampler.curve()
        if model.finished is not None and window < _OLD_ENOUGH_S:
            curve, window = model.finished
        capacity = fleet_capacity(self._registry, name)
        return ModelTraffic(
            block_size=self._registry.unit_of(name),
            capacity_blocks=capacity,
            hit_rate_now=curve.hit_rate(capacity),
            reuse=ReuseView(
                window_s=window,
                blocks=curve.blocks,
                distinct_blocks=curve.distinct,
                sampled_share=curve.sampled_share,
                ceiling=curve.ceiling,
                curve=tuple((size, curve.hit_rate(size)) for size in sizes_of(curve)),
            ),
            turns=model.replies.by_turn(),
            divergence=found,
        )


def fleet_capacity(registry: Registry, model: str) -> int:
    """Blocks of the pool's unit that all workers of `model` have; 0 where one does not say."""
    infos = [w.info for w in registry.workers() if w.info is not None and w.info.model == model]
    if not all(info.capacity_blocks for info in infos):
        return 0
    tokens = sum(info.capacity_blocks * info.block_size for info in infos)
    return tokens // registry.unit_of(model)


def sizes_of(curve: ReuseCurve) -> tuple[int, ...]:
    """Powers of two up to the first cache that holds all there is."""
    sizes = [1]
    while sizes[-1] < curve.distinct:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)
