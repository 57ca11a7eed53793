"""Random lives of an engine. After every move everything is recomputed from scratch, and at the end each
request has said what it says alone on an engine without a cache."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.types import CacheScope
from workers.engine import Engine
from workers.sim import SimRunner
from workers.timing import LinearTiming
from workers.types import EngineConfig, EngineRequest, SamplingParams

SCOPES = (CacheScope("m"), CacheScope("m", salt="s"), CacheScope("m", adapter="a"), CacheScope("n"))
EOS = frozenset({2})
ROOT = (3, 4, 4, 3, 5) * 8


def engine(*, caching: bool, blocks: int, budget: int, threshold: int = 0) -> Engine:
    config = EngineConfig(
        "m",
        block_size=4,
        num_blocks=blocks,
        max_model_len=48,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        enable_prefix_caching=caching,
    )
    runner = SimRunner(
        LinearTiming(),
        num_blocks=blocks,
        block_size=4,
        vocab_size=40,
        eos_token_ids=EOS,
        mean_output_tokens=30,
    )
    return Engine(config, runner, (lambda _batch: None) if caching else None, clock=lambda: 0.0)


class EngineLife(RuleBasedStateMachine):
    """Small numbers make the interesting things frequent: few blocks of 4 tokens, one root with edits."""

    @initialize(
        blocks=st.integers(12, 18),
        budget=st.sampled_from((4, 7, 16, 64)),
        threshold=st.sampled_from((0, 0, 1, 3, 20)),
    )
    def start(self, blocks: int, budget: int, threshold: int) -> None:
        self.engine = engine(caching=True, blocks=blocks, budget=budget, threshold=threshold)
        self.budget = budget
        self.requests: dict[str, EngineRequest] = {}
        self.said: dict[str, list[int | None]] = {}
        self.open: list[str] = []
        self.done: list[str] = []

    @rule(
        length=st.integers(1, 40),
        edit=st.none() | st.integers(0, 39),
        scope=st.sampled_from((*SCOPES[:1] * 3, *SCOPES)),
        max_tokens=st.integers(1, 30),
        ignore_eos=st.booleans(),
        skip=st.sampled_from((False, False, False, True)),
    )
    def add(
        self,
        length: int,
        edit: int | None,
        scope: CacheScope,
        max_tokens: int,
        ignore_eos: bool,
        skip: bool,
    ) -> None:
        prompt = list(ROOT[:length])
        if edit is not None and edit < length:
            prompt[edit] = 9
        name = f"r{len(self.requests)}"
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
        self.requests[name] = EngineRequest(name, tuple(prompt), sampling, scope, skip)
        self.said[name] = []
        self.open.append(name)
        self.engine.add(self.requests[name])

    @precondition(lambda self: self.open)
    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self.open))
        self.open.remove(name)
        ended = self.engine.abort(name)
        assert ended is not None
        assert ended.finish_reason == "abort"

    @rule()
    def reset(self) -> None:
        done = self.engine.reset_prefix_cache()
        assert done is (self.engine.stats().running == 0)

    @invariant()
    def integrity(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()
            stats = self.engine.stats()
            assert stats.running + stats.waiting == len(self.open)

    def _step(self) -> None:
        for output in self.engine.step():
            name = output.request_id
            self.said[name].append(output.token_id)
            length = len(self.requests[name].prompt_token_ids)
            assert output.num_cached_tokens <= (length - 1) // 4 * 4
            if output.finish_reason is not None:
                self.open.remove(name)
                self.done.append(name)
        self.engine.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(5_000):
            if not self.open:
                break
            self._step()
        assert not self.open, "somebody starved"
        assert self.engine.stats().kv_cache_usage == 0
        for name in self.done:
            assert self.said[name] == said_alone(self.requests[name]), name


def said_alone(request: EngineRequest) -> list[int | None]:
    lonely = engine(caching=False, blocks=12, budget=64)
    lonely.add(request)
    said: list[int | None] = []
    while lonely.has_work:
        said += [output.token_id for output in lonely.step()]
    return said


EngineLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_engine_life = EngineLife.TestCase
