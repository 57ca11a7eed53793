"""The simulated twin in virtual time: the seconds are the model's, and shortcuts change nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from gateway.kv.events import BlockStored, EventBatch
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.types import CacheScope
from workers.engine import Engine
from workers.profiles import profile_named
from workers.timing import LinearTiming
from workers.types import EngineConfig, EngineRequest, Sampled, SamplingParams, StepItem
from workers.virtual import VirtualEngine

SCOPE = CacheScope("m")
PROMPT = tuple(range(100, 140))


def request(name: str, prompt: tuple[int, ...], max_tokens: int = 1) -> EngineRequest:
    return EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens), SCOPE)


def virtual(batches: list[EventBatch] | None = None) -> VirtualEngine:
    timing = profile_named("1ms-per-token,10ms-per-step").timing
    config = EngineConfig("m", num_blocks=64, max_model_len=512)
    return VirtualEngine(
        config,
        timing,
        lambda sequence, count: [1_000 + len(sequence.output) + i for i in range(count)],
        None if batches is None else batches.append,
    )


def test_virtual_time_is_the_models() -> None:
    engine = virtual()
    assert engine.begin(5.0) is None
    engine.add(request("a", PROMPT, 3))
    assert engine.begin(5.0) == pytest.approx(5.05)
    assert engine.busy
    (sequence,) = engine.finish()
    assert (sequence.request.request_id, sequence.output, sequence.finish_reason) == ("a", [1_000], None)
    # two decode steps of 10 ms with nothing between them are one
    assert engine.begin(6.0) == pytest.approx(6.02)
    (sequence,) = engine.finish()
    assert (sequence.output, sequence.finish_reason) == ([1_000, 1_001, 1_002], "length")
    assert engine.begin(7.0) is None
    assert engine.stats().generation_tokens == 3


def test_virtual_events_are_stamped_with_virtual_time() -> None:
    batches: list[EventBatch] = []
    engine = virtual(batches)
    engine.add(request("a", PROMPT))
    engine.begin(12.0)
    assert batches == []
    engine.finish()
    (batch,) = batches
    assert batch.ts == pytest.approx(12.05)
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == PROMPT[:32]


def test_an_arrival_cuts_what_is_taken_as_one_after_the_step_in_progress() -> None:
    engine = virtual()
    engine.add(request("a", PROMPT, 9))
    engine.begin(0.0)
    engine.finish()
    # position 47 fills the third block, so 7 of the 8 decodes left are quiet
    assert engine.begin(1.0) == pytest.approx(1.07)
    assert engine.interrupt(1.025) == pytest.approx(1.03)
    engine.add(request("b", tuple(range(500, 520))))
    assert engine.interrupt(1.026) == pytest.approx(1.03)
    (sequence,) = engine.finish()
    assert len(sequence.output) == 4
    # both now: one decode, 20 tokens of prompt
    assert engine.begin(1.03) == pytest.approx(1.06)
    assert {s.request.request_id for s in engine.finish()} == {"a", "b"}
    assert engine.interrupt(2.0) is None


def test_aborts_during_a_step() -> None:
    engine = virtual()
    engine.add(request("a", PROMPT, 5))
    engine.begin(0.0)
    engine.add(request("b", PROMPT))
    engine.interrupt(0.01)
    assert engine.abort("a") is not None
    assert engine.finish() == []
    engine.begin(1.0)
    (sequence,) = engine.finish()
    assert (sequence.request.request_id, sequence.num_cached_tokens) == ("b", 32)
    assert engine.stats().kv_cache_usage == 0


def test_known_keys_need_no_hashing_but_must_be_all() -> None:
    engine = virtual()
    keys = block_keys(root_key(SCOPE), pack_tokens(PROMPT))
    engine.add(request("a", PROMPT), keys)
    engine.begin(0.0)
    engine.finish()
    engine.add(request("b", PROMPT))
    engine.begin(1.0)
    (sequence,) = engine.finish()
    assert sequence.num_cached_tokens == 32
    with pytest.raises(ValueError, match="1 keys for 2 full blocks"):
        engine.add(request("c", PROMPT), keys[:1])


def test_steps_cannot_overlap() -> None:
    engine = virtual()
    with pytest.raises(ValueError, match="no step"):
        engine.finish()
    engine.add(request("a", PROMPT))
    engine.begin(0.0)
    with pytest.raises(ValueError, match="in progress"):
        engine.begin(0.0)


@dataclass
class Life:
    """What a run of a workload looked like from outside."""

    progress: list[tuple[str, int, str | None, float]] = field(default_factory=list)
    batches: list[EventBatch] = field(default_factory=list)
    begun: int = 0


def lived(seed: int, *, step_by_step: bool, eos: frozenset[int], threshold: int = 0) -> Life:
    """A random workload with arrivals and aborts at random times, on a pool that is too small for it."""
    rng = random.Random(seed)
    life = Life()
    config = EngineConfig(
        "m",
        block_size=4,
        num_blocks=24,
        max_model_len=96,
        max_num_seqs=3,
        max_num_batched_tokens=16,
        long_prefill_token_threshold=threshold,
    )
    engine = VirtualEngine(
        config,
        LinearTiming(prefill_token_s=0.001, step_s=0.01),
        lambda sequence, count: [1_000 + (len(sequence.output) + i) % 29 for i in range(count)],
        life.batches.append,
        eos_token_ids=eos,
    )
    moves = sorted((rng.uniform(0, 3), i, rng.random() < 0.1) for i in range(40))
    now, end = 0.0, None
    while moves or end is not None:
        if moves and (end is None or moves[0][0] <= end):
            now, number, abort = moves.pop(0)
            engine.interrupt(now)
            if abort:
                engine.abort(f"r{number - 1}")
            else:
                tokens = tuple(range(rng.randrange(1, 50)))
                sampling = SamplingParams(max_tokens=rng.randrange(1, 40))
                engine.add(EngineRequest(f"r{number}", tokens, sampling, SCOPE))
            end = engine.interrupt(now)
        else:
            assert end is not None
            now = end
            for sequence in engine.finish():
                if len(sequence.output) == 1 or sequence.finish_reason is not None:
                    entry = (sequence.request.request_id, len(sequence.output), sequence.finish_reason, now)
                    life.progress.append(entry)
            engine.scheduler.check_integrity()
            end = None
        if end is None:
            end = engine.begin(now)
            life.begun += 1
            if step_by_step:
                end = engine.interrupt(now)
    return life


@pytest.mark.parametrize("threshold", [0, 5])
@pytest.mark.parametrize("seed", range(12))
def test_steps_taken_as_one_change_nothing(seed: int, threshold: int) -> None:
    quick = lived(seed, step_by_step=False, eos=frozenset(), threshold=threshold)
    slow = lived(seed, step_by_step=True, eos=frozenset(), threshold=threshold)
    assert quick.progress == slow.progress
    assert quick.batches == slow.batches
    assert quick.begun < slow.begun
    assert len(quick.progress) > 40


def test_where_a_token_may_end_a_sequence_nothing_is_taken_as_one() -> None:
    quick = lived(1, step_by_step=False, eos=frozenset({1_020}))
    slow = lived(1, step_by_step=True, eos=frozenset({1_020}))
    assert (quick.progress, quick.begun) == (slow.progress, slow.begun)
    assert "stop" in {reason for _name, _length, reason, _at in quick.progress}


class Watched:
    """Takes down what each step feeds: (tokens, first position) of each sequence."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int]]] = []

    def step_seconds(self, shapes: Iterable[tuple[int, int]]) -> float:
        self.steps.append(list(shapes))
        return 0.01

    def decode_seconds(self, sequences: int, context: int) -> float:
        return 0.01


@dataclass
class Scripted:
    """A runner that says 7, and takes down the same."""

    steps: list[list[tuple[int, int]]] = field(default_factory=list)
    vocab_size: int = 100
    eos_token_ids: frozenset[int] = frozenset({2})

    def execute(self, items: Sequence[StepItem]) -> list[Sampled | None]:
        self.steps.append([(len(item.tokens), item.start) for item in items])
        return [Sampled(7) if item.samples else None for item in items]


@pytest.mark.parametrize("seed", range(6))
def test_virtual_and_real_engine_take_the_same_steps(seed: int) -> None:
    config = EngineConfig(
        "m",
        block_size=4,
        num_blocks=30,
        max_model_len=96,
        max_num_seqs=3,
        max_num_batched_tokens=16,
        long_prefill_token_threshold=5,
    )
    runner, timing = Scripted(), Watched()
    real = Engine(config, runner)
    twin = VirtualEngine(config, timing, lambda _sequence, count: [7] * count, eos_token_ids=frozenset({2}))
    rng = random.Random(seed)
    # the last comes first, and alone
    coming = [(rng.randrange(1, 60), rng.randrange(1, 12)) for _ in range(20)] + [(40, 3)]
    while coming or real.has_work:
        for _ in range(min(len(coming), rng.choice((0, 0, 1, 2)) if runner.steps else 1)):
            length, answer = coming.pop()
            first = 100 * rng.randrange(8)
            one = request(f"r{len(coming)}", tuple(range(first, first + length)), answer)
            real.add(one)
            twin.add(one)
        real.step()
        if twin.begin(0.0) is not None:
            twin.finish()
        assert runner.steps == timing.steps
    assert real.stats() == twin.stats()
    assert runner.steps[0] == [(16, 0)]
    assert max(count for step in runner.steps if len(step) > 1 for count, _start in step) == 5
