"""The engine on its thread, seen from an event loop. A gate in the runner decides when a step may end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from gateway.types import CacheScope
from workers.async_engine import AsyncEngine, EngineDead
from workers.engine import Engine
from workers.scheduler import RequestRefused
from workers.types import EngineConfig, EngineRequest, Sampled, SamplingParams, StepItem

pytestmark = pytest.mark.anyio


class GatedRunner:
    """Each step waits for a permit; `forever` opens the gate for good."""

    vocab_size = 100
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.open = False
        self.failure: Exception | None = None
        self.steps: list[list[str]] = []

    def execute(self, items: Sequence[StepItem]) -> list[Sampled | None]:
        self.steps.append([item.request_id.split("#")[0] for item in items])
        self.started.release()
        if not self.open:
            self.permits.acquire()
        if self.failure is not None:
            raise self.failure
        return [Sampled(len(item.output_token_ids)) if item.samples else None for item in items]

    def forever(self) -> None:
        self.open = True
        self.permits.release()

    async def running(self) -> None:
        """Until one more step has begun."""
        await asyncio.to_thread(self.started.acquire)


def request(name: str = "a", length: int = 20, max_tokens: int = 3) -> EngineRequest:
    tokens = tuple(range(length))
    return EngineRequest(name, tokens, SamplingParams(max_tokens=max_tokens), CacheScope("m"))


def serving(runner: Any) -> AsyncEngine:
    return AsyncEngine(Engine(EngineConfig("m", num_blocks=32, max_model_len=256), runner))


@pytest.fixture
def runner() -> GatedRunner:
    return GatedRunner()


async def tokens(engine: AsyncEngine, wanted: EngineRequest) -> list[int | None]:
    return [output.token_id async for output in engine.generate(wanted)]


async def test_tokens_come_in_order_and_end_with_a_reason(runner: GatedRunner) -> None:
    runner.forever()
    async with serving(runner) as engine:
        outputs = [output async for output in engine.generate(request())]
    assert [o.token_id for o in outputs] == [0, 1, 2]
    assert [o.finish_reason for o in outputs] == [None, None, "length"]
    assert {o.request_id for o in outputs} == {"a"}


async def test_many_at_once_each_get_their_own(runner: GatedRunner) -> None:
    runner.forever()
    async with serving(runner) as engine:
        wanted = [request(f"r{i}", length=5 + i, max_tokens=1 + i % 7) for i in range(40)]
        said = await asyncio.gather(*(tokens(engine, r) for r in wanted))
    assert said == [list(range(1 + i % 7)) for i in range(40)]


async def test_one_id_twice_is_two_sequences(runner: GatedRunner) -> None:
    runner.forever()
    async with serving(runner) as engine:
        said = await asyncio.gather(tokens(engine, request()), tokens(engine, request(max_tokens=5)))
    assert [len(s) for s in said] == [3, 5]


async def test_the_event_loop_is_free_while_a_step_runs(runner: GatedRunner) -> None:
    async with serving(runner) as engine:
        task = asyncio.create_task(tokens(engine, request()))
        await runner.running()
        assert engine.stats().running == 1
        assert not task.done()
        runner.forever()
        assert await task == [0, 1, 2]


async def test_a_request_joins_while_another_decodes(runner: GatedRunner) -> None:
    async with serving(runner) as engine:
        first = asyncio.create_task(tokens(engine, request("a")))
        await runner.running()
        second = asyncio.create_task(tokens(engine, request("b")))
        await asyncio.sleep(0)  # its command is in the queue now
        runner.forever()
        await asyncio.gather(first, second)
    assert runner.steps[:2] == [["a"], ["a", "b"]]


async def test_cancelling_aborts_before_the_next_step(runner: GatedRunner) -> None:
    async with serving(runner) as engine:
        task = asyncio.create_task(tokens(engine, request("a", max_tokens=200)))
        await runner.running()
        other = asyncio.create_task(tokens(engine, request("b", max_tokens=1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        runner.forever()
        await other
        assert runner.steps == [["a"], ["b"]]
        assert engine.stats().running == 0
        assert engine.stats().kv_cache_usage == 0


async def test_closing_the_stream_early_aborts(runner: GatedRunner) -> None:
    runner.permits.release(2)
    async with serving(runner) as engine:
        async with aclosing(engine.generate(request(max_tokens=200))) as stream:
            async for output in stream:
                if output.token_id == 1:
                    break
        runner.forever()
        assert await tokens(engine, request("b")) == [0, 1, 2]
        assert engine.stats().running == 0
        assert len([step for step in runner.steps if "a" in step]) <= 3  # the third may have begun


async def test_what_cannot_be_served_is_refused_at_once(runner: GatedRunner) -> None:
    async with serving(runner) as engine:
        with pytest.raises(RequestRefused, match="256 tokens"):
            await tokens(engine, request(length=256))
        assert engine.healthy


async def test_a_reset_waits_for_the_step_and_is_refused_while_busy(runner: GatedRunner) -> None:
    async with serving(runner) as engine:
        assert await engine.reset_prefix_cache() is True
        task = asyncio.create_task(tokens(engine, request()))
        await runner.running()
        reset = asyncio.create_task(engine.reset_prefix_cache())
        await asyncio.sleep(0)
        runner.forever()
        assert await reset is False
        await task
        assert await engine.reset_prefix_cache() is True


async def test_a_failing_runner_ends_requests_and_marks_the_engine_dead(
    runner: GatedRunner, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(runner) as engine:
        both = [asyncio.create_task(tokens(engine, request(name))) for name in "ab"]
        await runner.running()
        runner.failure = MemoryError("no room for the logits")
        runner.forever()
        for task in both:
            with pytest.raises(EngineDead, match="no room for the logits") as caught:
                await task
            assert isinstance(caught.value.__cause__, MemoryError)
        assert not engine.healthy
        with pytest.raises(EngineDead):
            await tokens(engine, request("c"))
        with pytest.raises(EngineDead):
            await engine.reset_prefix_cache()
    assert "the engine failed" in caplog.text


async def test_closing_ends_open_streams_and_the_thread(runner: GatedRunner) -> None:
    engine = serving(runner)
    engine.start()
    task = asyncio.create_task(tokens(engine, request(max_tokens=200)))
    await runner.running()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    runner.forever()
    await closing
    with pytest.raises(EngineDead, match="closed"):
        await task
    await engine.close()
    assert "engine" not in {thread.name for thread in threading.enumerate()}
