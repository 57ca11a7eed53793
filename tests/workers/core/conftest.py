"""Engines for the tests of the core: the real scheduler and pool, and runners that need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.kv.events import EventBatch, KVEvent
from gateway.types import CacheScope
from workers.engine import Engine
from workers.sim import SimRunner
from workers.timing import LinearTiming
from workers.types import EngineConfig, EngineRequest, Runner, Sampled, SamplingParams, StepItem, TokenOutput

SCOPE = CacheScope("m")


@dataclass
class ScriptedRunner:
    """Says what it was told to: `answers` by request id, else token 7. Keeps every step's items."""

    answers: dict[str, Sequence[int]] = field(default_factory=dict)
    steps: list[list[StepItem]] = field(default_factory=list)
    vocab_size: int = 100_000
    eos_token_ids: frozenset[int] = frozenset({2})

    def execute(self, items: Sequence[StepItem]) -> list[Sampled | None]:
        self.steps.append(list(items))
        return [self._next(item) if item.samples else None for item in items]

    def _next(self, item: StepItem) -> Sampled:
        answer = self.answers.get(item.request_id)
        return Sampled(7 if answer is None else answer[len(item.output_token_ids)])


@dataclass
class Harness:
    """An engine, what its runner was fed, and what it published."""

    engine: Engine
    runner: Any
    batches: list[EventBatch]
    outputs: dict[str, list[TokenOutput]] = field(default_factory=dict)

    @property
    def events(self) -> list[KVEvent]:
        return [event for batch in self.batches for event in batch.events]

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int = 1,
        *,
        scope: CacheScope = SCOPE,
        skip_cache_read: bool = False,
        **sampling: Any,
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        self.engine.add(EngineRequest(name, tuple(prompt), params, scope, skip_cache_read))

    def step(self) -> list[TokenOutput]:
        outputs = self.engine.step()
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        self.engine.check_integrity()
        return outputs

    def finish(self) -> None:
        while self.engine.has_work:
            self.step()

    def run(self, name: str, prompt: Sequence[int], max_tokens: int = 1, **options: Any) -> int:
        """One request alone; returns its cached tokens."""
        self.add(name, prompt, max_tokens, **options)
        self.finish()
        return self.outputs[name][-1].num_cached_tokens

    def tokens(self, name: str) -> list[int | None]:
        return [output.token_id for output in self.outputs[name]]


MakeHarness = Callable[..., Harness]


def harness(runner: Runner | None = None, **config: Any) -> Harness:
    settings: dict[str, Any] = {"num_blocks": 64, "max_model_len": 1_024, "max_num_batched_tokens": 512}
    settings.update(config)
    batches: list[EventBatch] = []
    chosen = ScriptedRunner() if runner is None else runner
    engine = Engine(EngineConfig("m", **settings), chosen, batches.append, clock=lambda: 1.5)
    return Harness(engine, chosen, batches)


@pytest.fixture
def make() -> MakeHarness:
    return harness


@pytest.fixture
def make_sim() -> MakeHarness:
    """The same with tokens that depend on all tokens before them, read through the block tables."""

    def build(**config: Any) -> Harness:
        blocks, size = config.setdefault("num_blocks", 64), config.setdefault("block_size", 16)
        runner = SimRunner(
            LinearTiming(),
            num_blocks=blocks,
            block_size=size,
            vocab_size=50_000,
            eos_token_ids=frozenset({2}),
        )
        return harness(runner, **config)

    return build
