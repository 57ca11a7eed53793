"""SGLang's metrics, read as vLLM's are. The text is SGLang's own; its figures stand in tests/data/sglang."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.diagnosis.collect import ENGINE_METRICS
from gateway.diagnosis.diagnose import diagnose
from gateway.diagnosis.dialects import SGLANG, VLLM
from gateway.diagnosis.engine_meters import Meters, dialect_of, model_of
from gateway.diagnosis.facts import (
    Engine,
    EventsFacts,
    Facts,
    Replica,
    TrafficFacts,
    WorkerRow,
    traffic_facts,
)
from gateway.diagnosis.finding import Evidence, Finding, Severity
from gateway.diagnosis.series import Scrape, Series, parse
from gateway.fleet.engine_metrics import cache_config

DATA = Path(__file__).resolve().parents[2] / "data" / "sglang"
BEGIN, END = ((DATA / f"metrics_v0523_{when}.txt").read_text() for when in ("begin", "end"))
URL = "http://sglang"


def recorded() -> Series:
    return Series([parse(BEGIN, 0.0, ENGINE_METRICS), parse(END, 10.0, ENGINE_METRICS)])


def test_every_figure_is_read_once() -> None:
    meters = Meters(recorded())
    assert (meters.dialect, model_of(recorded())) == (SGLANG, "qwen")
    # two data-parallel ranks; pipeline stages and priorities say the same again
    assert (meters.running, meters.waiting) == ([8, 6], [10, 16])
    assert meters.usage == [0.93, 0.99]
    assert meters.preempted == 2 * 3
    assert (meters.generated, meters.computed) == (2 * 500, 2 * 1000)
    assert meters.prompts == 8 * 800
    assert meters.gap == pytest.approx(8 * 2.0 / (8 * 20))
    # four in (0.2, 0.4], four in (0.8, 1.0]
    assert (meters.ttft(0.5), meters.ttft(1.0)) == (pytest.approx(0.4), pytest.approx(1.0))
    assert meters.block_sizes == {16}


def test_block_size_and_capacity_of_each_rank() -> None:
    assert cache_config(END, 0) == cache_config(END, 1) == {"block_size": 16, "num_blocks": 512}
    other = 'sglang:page_size{dp_rank="1",tp_rank="0"} 64.0\nsglang:num_pages{dp_rank="1",tp_rank="0"} 9.0\n'
    assert (cache_config(other, 0), cache_config(other, 1)) == ({}, {"block_size": 64, "num_blocks": 9})
    # before 0.5.11: labels, and no rank where there is one alone
    older = 'sglang:cache_config_info{num_pages="512",page_size="64"} 1.0\n'
    assert cache_config(older) == {"block_size": 64, "num_blocks": 512}
    assert Meters(
        Series([parse(older + "sglang:num_running_reqs 1.0\n", 0.0, ENGINE_METRICS)])
    ).block_sizes == {64}


def test_an_older_engine_counts_when_requests_end() -> None:
    def at(generated: int, uncached: int) -> str:
        figures = {
            "num_running_reqs": 2, "generation_tokens_total": generated,
            "uncached_prompt_tokens_histogram_sum": uncached,
        }  # fmt: skip
        return "".join(f'sglang:{name}{{model_name="m"}} {value}\n' for name, value in figures.items())

    meters = Meters(Series([parse(at(*each), 0.0, ENGINE_METRICS) for each in ((100, 1000), (160, 1300))]))
    assert (meters.generated, meters.computed, meters.running) == (60, 300, [2, 2])


def test_nothing_known_is_vllm_s_and_empty() -> None:
    meters = Meters(Series([Scrape(0.0)]))
    assert (meters.dialect, dialect_of(Series())) == (VLLM, VLLM)
    assert (meters.running, meters.generated, meters.gap, meters.block_sizes) == ([], 0, None, set())


def only(found: tuple[Finding, ...]) -> Finding:
    assert len(found) == 1, [f.id for f in found]
    return found[0]


def test_retractions_are_contention_told_in_sglang_s_words() -> None:
    found = only(diagnose(Facts(10.0, [], [Engine(URL, "qwen", recorded())])))
    # more wait (13) than run (7)
    assert (found.id, found.severity, found.confidence) == ("kv-contention", Severity.CRITICAL, 0.95)
    assert set(found.evidence) >= {
        Evidence("preemptions", 6),
        Evidence("K/V usage, peak", "99 %"),
        Evidence("waiting requests, mean", 13),
        Evidence("running requests, mean", 7),
    }
    told = " ".join(found.remedy)
    for flag in ("--max-running-requests", "--context-length", "--mem-fraction-static", "fp8_e4m3"):
        assert flag in told
    assert "--max-num-seqs" not in told


def engine(url: str = URL, **gauges: tuple[float, ...]) -> Engine:
    """Gauges and counters by name without `sglang:`, one value a scrape, of one scheduler."""
    length = max(len(values) for values in gauges.values())
    scrapes = [Scrape(float(at)) for at in range(length)]
    for name, values in gauges.items():
        for scrape, value in zip(scrapes, values, strict=True):
            scrape.put(f"sglang:{name}", {"model_name": "m", "tp_rank": "0"}, value)
    return Engine(url, "m", Series(scrapes))


def test_waiting_beside_free_memory_is_the_batch_limit_or_the_scheduler_s_caution() -> None:
    sick = engine(
        num_running_reqs=(8, 8, 8, 8), num_queue_reqs=(3, 5, 4, 4), token_usage=(0.1, 0.2, 0.2, 0.1),
        generation_tokens_total=(0, 100, 200, 300),
    )  # fmt: skip
    found = only(diagnose(Facts(3.0, [], [sick])))
    assert (found.id, found.confidence) == ("batch-limit", 0.75)
    assert "--max-running-requests is 8" in found.cause
    assert any("--schedule-conservativeness" in remedy for remedy in found.remedy)


def test_slow_decode_of_an_idle_engine_is_bandwidth() -> None:
    sick = engine(
        num_running_reqs=(1, 2), num_queue_reqs=(0, 0), token_usage=(0.05, 0.05),
        generation_tokens_total=(0, 100), inter_token_latency_seconds_sum=(0, 7.0),
        inter_token_latency_seconds_count=(0, 100),
    )  # fmt: skip
    found = only(diagnose(Facts(1.0, [], [sick])))
    assert found.id == "bandwidth-bound"
    assert Evidence("time between tokens, mean", 70.0, "ms") in found.evidence


def test_a_hot_spot_among_engines_of_both_kinds() -> None:
    cool = Scrape(0.0)
    cool.put("vllm:num_requests_running", {}, 1)
    cool.put("vllm:num_requests_waiting", {}, 0)
    pool = [
        engine(num_running_reqs=(6, 6), num_queue_reqs=(3, 3)),
        Engine("http://v", "m", Series([cool, cool])),
    ]
    assert only(diagnose(Facts(1.0, [], pool))).subject == URL


@pytest.mark.parametrize(
    ("evictable", "cached", "sick"),
    [((0, 0), 0, True), ((0, 640), 0, False), ((0, 0), 320, False)],
    ids=["nothing stays", "something stays", "something was found"],
)
def test_an_engine_that_keeps_nothing_of_ended_requests_has_no_cache(
    evictable: tuple[int, int], cached: int, *, sick: bool
) -> None:
    seen = engine(
        num_running_reqs=(1, 1), num_requests_total=(10, 18), prompt_tokens_total=(5000, 9000),
        kv_evictable_tokens=evictable, cached_tokens_total=(0, cached),
    )  # fmt: skip
    found = diagnose(Facts(1.0, [], [seen]))
    assert [(one.id, one.remedy) for one in found] == (
        [("prefix-caching-off", ("start it without --disable-radix-cache",))] if sick else []
    )


def test_few_or_short_prompts_say_nothing_of_the_cache() -> None:
    """A page of 64 tokens that is not full leaves nothing behind."""
    for requests, prompts in ((7, 9000), (8, 300)):
        seen = engine(
            num_running_reqs=(1, 1), num_requests_total=(0, requests), prompt_tokens_total=(0, prompts),
            kv_evictable_tokens=(0, 0),
        )  # fmt: skip
        assert diagnose(Facts(1.0, [], [seen])) == ()


def test_page_sizes_are_compared_with_block_sizes() -> None:
    vllm = Scrape(0.0)
    vllm.put("vllm:cache_config_info", {"block_size": "16"}, 1)
    sizes = [Engine("http://v", "m", Series([vllm])), engine(num_running_reqs=(0,), page_size=(1,))]
    found = only(diagnose(Facts(1.0, [], sizes)))
    assert (found.id, found.severity) == ("block-size-mismatch", Severity.CRITICAL)
    assert Evidence("block sizes", f"{URL}: 1, http://v: 16") in found.evidence


def remedies(
    row: WorkerRow, *scrapes: Scrape, traffic: dict[str, TrafficFacts] | None = None
) -> dict[str, str]:
    replica = Replica("r", Series(scrapes), (row,), (row,), {}, traffic or {})
    found = diagnose(Facts(1.0, [replica], [engine(num_running_reqs=(0, 0))]))
    return {one.id: one.remedy[0] for one in found}


def test_flags_of_what_the_gateway_lives_on() -> None:
    deaf = WorkerRow(URL, url=URL, state="ready", model="m")
    told = remedies(deaf)["events-off"]
    assert told.startswith('start the engine with --kv-events-config \'{"publisher": "zmq", ')
    assert "enable_kv_cache_events" not in told

    def counted(requests: int) -> Scrape:
        scrape = Scrape(float(requests))
        scrape.put("gateway_requests_total", {"worker": f"{URL}#0", "outcome": "ok"}, requests)
        scrape.put("gateway_completion_tokens_total", {"worker": f"{URL}#0"}, 9 * requests)
        return scrape

    well = WorkerRow(URL, url=URL, state="ready", model="m", events=EventsFacts("following"))
    assert remedies(well, counted(0), counted(5)) == {
        "token-details-off": "start the engine with --enable-cache-report"
    }
    curve = [[100, 0.1], [400, 0.6]]
    seen = {"blocks": 10_000.0, "distinct_blocks": 390.0, "ceiling": 0.6, "curve": curve}
    much = traffic_facts({"models": {"m": {"capacity_blocks": 150, "hit_rate_now": 0.2, "reuse": seen}}})
    assert "--mem-fraction-static" in remedies(well, traffic=much)["working-set"]
