"""Counters, gauges and quantiles over a window, by hand and as Prometheus defines them."""

from __future__ import annotations

import asyncio

import pytest

from gateway.diagnosis.collect import Target, begun_in_turn, clock_offset
from gateway.diagnosis.series import Scrape, Series, parse

FIRST = """
# HELP vllm:num_preemptions_total Times
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} 5
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 1
other_total 7
this line is not one vllm:
vllm:broken{ 3
"""


def series(*values: float | None, name: str = "c_total") -> Series:
    scrapes = [Scrape(float(at)) for at in range(len(values))]
    for scrape, value in zip(scrapes, values, strict=True):
        if value is not None:
            scrape.put(name, {}, value)
    return Series(scrapes)


def test_only_what_is_asked_for_is_read() -> None:
    scrape = parse(FIRST, 0.0, ("vllm:",))
    assert scrape.samples == {
        "vllm:num_preemptions_total": {(("engine", "0"),): 5.0},
        "vllm:num_requests_running": {(("engine", "0"),): 2.0, (("engine", "1"),): 1.0},
    }


def test_buckets_that_nobody_asks_for_are_not_read() -> None:
    text = 'x_bucket{le="1.0"} 2\nx_bucket{le="+Inf"} 3\nx_sum 4.5\nx_count 3\n'
    assert parse(text, 0.0, ("x",), buckets=False).samples == {"x_sum": {(): 4.5}, "x_count": {(): 3.0}}
    assert len(parse(text, 0.0, ("x",)).samples["x_bucket"]) == 2


def test_a_counter_grows() -> None:
    assert series(3, 5, 9).increase("c_total") == 6


def test_a_restarted_counter_counts_from_zero() -> None:
    assert series(10, 12, 1, 4).increase("c_total") == 2 + 1 + 3


def test_a_series_that_turns_up_was_zero_before() -> None:
    assert series(None, 4, 5).increase("c_total") == 5


def test_a_scrape_that_failed_is_skipped() -> None:
    assert series(1, None, 5).increase("c_total") == 4


def test_gauges_are_summed_over_what_matches() -> None:
    one = Series([parse(FIRST, 0.0, ("vllm:",)), parse(FIRST.replace("} 2", "} 8"), 1.0, ("vllm:",))])
    assert one.values("vllm:num_requests_running") == [3, 9]
    assert one.mean("vllm:num_requests_running", engine="0") == 5
    assert one.peak("vllm:num_requests_running") == 9
    assert one.highest("vllm:num_requests_running") == [2, 8]
    assert one.highest("vllm:num_requests_running", engine="1") == [1, 1]
    assert one.last("vllm:unknown") is None
    assert one.mean("vllm:unknown") == 0.0
    assert one.seconds == 1.0


def histogram(counts: dict[str, float], total: float) -> Series:
    before, after = Scrape(0.0), Scrape(1.0)
    for le, count in counts.items():
        before.put("h_bucket", {"le": le}, 0)
        after.put("h_bucket", {"le": le}, count)
    after.put("h_sum", {}, total)
    after.put("h_count", {}, max(counts.values()))
    return Series([before, after])


def test_quantiles_are_linear_within_a_bucket() -> None:
    # 10 below 1, 30 between 1 and 2, 10 between 2 and 4
    one = histogram({"1.0": 10, "2.0": 40, "4.0": 50, "+Inf": 50}, 100.0)
    assert one.quantile("h", 0.1) == pytest.approx(0.5)
    assert one.quantile("h", 0.5) == pytest.approx(1.5)
    assert one.quantile("h", 0.9) == pytest.approx(3.0)
    assert one.average("h") == 2.0


def test_beyond_the_last_bound_that_bound_is_the_answer() -> None:
    assert histogram({"1.0": 1, "+Inf": 10}, 1.0).quantile("h", 0.9) == 1.0


def test_an_idle_histogram_has_no_quantile() -> None:
    one = histogram({"1.0": 0, "+Inf": 0}, 0.0)
    assert one.quantile("h", 0.5) is None
    assert one.average("h") is None


def test_nothing_seen() -> None:
    assert Series().increase("c_total") == 0
    assert Series().labels("c_total") == []


@pytest.mark.parametrize(
    ("second", "offset"),
    [
        (40, 0.0),  # written within the second
        (39, 0.0),  # refreshed once a second: may be a second old
        (45, 4.5),
        (30, -8.5),
    ],
)
def test_an_http_date_tells_only_what_it_must(second: int, offset: float) -> None:
    # Sun, 29 Nov 2026 17:00:40 GMT is 1795971640
    date = f"Sun, 29 Nov 2026 17:00:{second} GMT"
    assert clock_offset(date, 1795971640.5, 1795971640.5) == pytest.approx(offset)


def test_no_date_no_offset() -> None:
    assert clock_offset(None, 0, 0) is None
    assert clock_offset("yesterday", 0, 0) is None


@pytest.mark.anyio
async def test_questions_are_begun_one_a_turn_and_wait_for_each_other_at_the_end_alone() -> None:
    begun, turns, all_begun = 0, [], asyncio.Event()

    async def question() -> None:
        nonlocal begun
        begun += 1
        await all_begun.wait()

    async def request() -> None:
        while begun < 100:
            turns.append(begun)
            await asyncio.sleep(0)
        all_begun.set()

    other = asyncio.create_task(request())
    targets = [Target(f"http://{number}") for number in range(100)]
    await begun_in_turn(((target, question()) for target in targets), 0.0)
    await other
    assert turns == list(range(100))
    await asyncio.gather(*(target.asking for target in targets if target.asking is not None))
    assert all(target.idle for target in targets)
