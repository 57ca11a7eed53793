"""`make calls`: what is counted, where the right numbers are known."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from benchmarks.calls import Counting, Tally, by_function, by_module, measure
from benchmarks.wire.bench import prompts


def test_each_call_of_a_function_is_counted() -> None:
    def outer(numbers: list[int]) -> list[int]:
        return [inner(number) for number in numbers]

    def inner(number: int) -> int:
        return len(str(number))

    counting = Counting()
    sys.setprofile(counting)
    outer([1, 2, 3])
    sys.setprofile(None)
    found = by_function(Tally(counting.python, counting.c, 0.0))
    assert [count for name, count in found.items() if name.endswith("inner")] == [3]
    assert [count for name, count in found.items() if name.endswith("outer")] == [1]


def test_a_chunk_is_what_a_longer_stream_takes_more() -> None:
    code = test_each_call_of_a_function_is_counted.__code__
    short, long = Tally({code: 100.0}, 50.0, 2e-3), Tally({code: 400.0}, 90.0, 6e-3)
    chunk = long.less(short, 40)
    assert (chunk.python[code], chunk.c, chunk.cpu_s) == (7.5, 1.0, pytest.approx(1e-4))
    assert by_module(chunk) == {"tests.benchmarks.test_calls": 7.5}


@pytest.mark.anyio
async def test_a_request_has_one_record_and_one_decision(free_port: Callable[[], int]) -> None:
    found = by_function(await measure(1, prompts(200, 4, stream=False), rounds=1))
    for name in ("gateway.api.record:Story.end", "gateway.routing.router:Router._take"):
        assert found[name] == 1.0
