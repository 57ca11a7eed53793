"""Each rule on facts made by hand: what it says of the sick, and that it says nothing of the healthy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli.doctor import command
from gateway.diagnosis import diagnose as diagnosis
from gateway.diagnosis.diagnose import diagnose
from gateway.diagnosis.facts import Engine, EventsFacts, Facts, Replica, WorkerRow, traffic_facts
from gateway.diagnosis.finding import Evidence, Finding, Severity, exit_status, figure
from gateway.diagnosis.series import Scrape, Series

ROOT = Path(__file__).resolve().parents[3]
Values = dict[str, float]


def engine(url: str = "http://a", **gauges: tuple[float, ...]) -> Engine:
    """Gauges and counters of vLLM by name without `vllm:`, one value a scrape."""
    length = max(len(values) for values in gauges.values())
    scrapes = [Scrape(float(at)) for at in range(length)]
    for name, values in gauges.items():
        for scrape, value in zip(scrapes, values, strict=True):
            scrape.put(f"vllm:{name}", {}, value)
    for scrape in scrapes:
        scrape.put("vllm:cache_config_info", {"cache_dtype": "auto", "enable_prefix_caching": "True"}, 1)
    return Engine(url, "m", Series(scrapes))


def facts(*engines: Engine, replica: Replica | None = None) -> Facts:
    return Facts(10.0, [replica] if replica else [], engines)


def only(found: tuple[Finding, ...]) -> Finding:
    assert len(found) == 1, [f.id for f in found]
    return found[0]


def test_preemptions_are_contention() -> None:
    sick = engine(
        num_preemptions_total=(0, 6), num_requests_running=(4, 4), num_requests_waiting=(1, 3),
        kv_cache_usage_perc=(0.9, 1.0),
    )  # fmt: skip
    found = only(diagnose(facts(sick)))
    assert (found.id, found.severity, found.confidence) == ("kv-contention", Severity.WARNING, 0.95)
    assert Evidence("preemptions", 6) in found.evidence
    assert any("fp8" in remedy for remedy in found.remedy)


def test_waiting_at_a_full_cache_is_contention_too_and_less_sure() -> None:
    sick = engine(num_requests_running=(4, 4), num_requests_waiting=(2, 3), kv_cache_usage_perc=(0.95, 0.97))
    assert only(diagnose(facts(sick))).confidence == 0.7


def test_more_waiting_than_running_is_critical() -> None:
    sick = engine(
        num_preemptions_total=(0, 6), num_requests_running=(2, 2), num_requests_waiting=(9, 9),
        kv_cache_usage_perc=(1, 1),
    )  # fmt: skip
    assert exit_status(diagnose(facts(sick))) == 3


def test_a_full_cache_alone_is_no_illness() -> None:
    well = engine(num_requests_running=(4, 4), num_requests_waiting=(0, 0), kv_cache_usage_perc=(0.97, 0.97))
    assert diagnose(facts(well)) == ()


def test_two_half_full_ranks_are_not_one_that_is_full() -> None:
    def ranks(first: float, second: float) -> Facts:
        scrapes = [Scrape(0.0), Scrape(1.0)]
        for scrape in scrapes:
            for rank, usage in (("0", first), ("1", second)):
                for name, value in (("kv_cache_usage_perc", usage), ("num_requests_waiting", 1.0)):
                    scrape.put(f"vllm:{name}", {"engine": rank}, value)
        return facts(Engine("http://a", "m", Series(scrapes)))

    assert diagnose(ranks(0.5, 0.6)) == ()
    found = only(diagnose(ranks(0.1, 0.92)))
    assert Evidence("K/V usage, peak", "92 %") in found.evidence


def test_waiting_beside_free_memory_is_the_batch_limit() -> None:
    sick = engine(
        num_requests_running=(8, 8, 8, 8), num_requests_waiting=(3, 5, 4, 4),
        kv_cache_usage_perc=(0.1, 0.2, 0.2, 0.1), generation_tokens_total=(0, 100, 200, 300),
    )  # fmt: skip
    found = only(diagnose(facts(sick)))
    assert found.id == "batch-limit"
    assert Evidence("running requests, never more than", 8) in found.evidence


def test_slow_decode_of_an_idle_engine_is_bandwidth() -> None:
    sick = engine(
        num_requests_running=(1, 2), num_requests_waiting=(0, 0), kv_cache_usage_perc=(0.05, 0.05),
        generation_tokens_total=(0, 100), inter_token_latency_seconds_sum=(0, 7.0),
        inter_token_latency_seconds_count=(0, 100),
    )  # fmt: skip
    found = only(diagnose(facts(sick)))
    assert found.id == "bandwidth-bound"
    assert Evidence("time between tokens, mean", 70.0, "ms") in found.evidence


def test_prefill_beside_decode_is_not_bandwidth() -> None:
    well = engine(
        num_requests_running=(1, 2), num_requests_waiting=(0, 0), kv_cache_usage_perc=(0.05, 0.05),
        generation_tokens_total=(0, 100), inter_token_latency_seconds_sum=(0, 7.0),
        inter_token_latency_seconds_count=(0, 100), request_prefill_kv_computed_tokens_sum=(0, 50_000),
    )  # fmt: skip
    assert diagnose(facts(well)) == ()


def test_a_hot_spot_needs_others_that_idle() -> None:
    def pool(hot: float, other: float) -> Facts:
        return facts(
            engine("http://a", num_requests_running=(hot, hot), num_requests_waiting=(0, 0)),
            engine("http://b", num_requests_running=(other, other), num_requests_waiting=(0, 0)),
        )

    assert only(diagnose(pool(9, 1))).subject == "http://a"
    assert diagnose(pool(9, 6)) == ()
    assert diagnose(pool(2, 0)) == ()


def test_a_hot_spot_is_not_told_to_use_the_policy_that_it_has() -> None:
    def remedy(*policies: str) -> str:
        pool = [
            engine(url, num_requests_running=(load, load), num_requests_waiting=(0, 0))
            for url, load in (("http://a", 9), ("http://b", 1))
        ]
        replicas = [Replica("r", Series(), policies={"*": policy}) for policy in policies]
        return only(diagnose(Facts(10.0, replicas, pool))).remedy[0]

    assert remedy("session_affinity") == "use a policy that weighs load against prefix (estimated_ttft)"
    assert remedy("estimated_ttft", "session_affinity") == remedy("session_affinity")
    assert "affinity_weight" in remedy("estimated_ttft")


def replica(*rows: WorkerRow, **traffic: object) -> Replica:
    models = {"models": {"m": traffic}} if traffic else {"models": {}}
    return Replica("r", Series(), rows, rows, {"*": "estimated_ttft"}, traffic_facts(models))


FOLLOWING = EventsFacts("following")


def test_a_worker_that_is_down_matters_more_when_it_is_the_last() -> None:
    down = WorkerRow("http://a", state="unhealthy", reason="refused", model="m", events=FOLLOWING)
    up = WorkerRow("http://b", state="ready", model="m", events=FOLLOWING)
    assert only(diagnose(facts(replica=replica(down, up)))).severity is Severity.WARNING
    assert only(diagnose(facts(replica=replica(down)))).severity is Severity.CRITICAL


def test_a_restart_is_told_by_events_that_begin_again() -> None:
    def watched(restarted: tuple[float, ...], lost: tuple[float, ...]) -> Facts:
        scrapes = [Scrape(float(at)) for at in range(len(restarted))]
        for scrape, again, gone in zip(scrapes, restarted, lost, strict=True):
            for reason, value in (("restarted", again), ("lost", gone)):
                scrape.put("gateway_event_epochs_total", {"worker": "http://a", "reason": reason}, value)
        row = WorkerRow("http://a", state="ready", model="m", indexed_blocks=7, events=FOLLOWING)
        return facts(replica=Replica("r", Series(scrapes), (row,), (row,)))

    found = only(diagnose(watched((2, 2, 3), (0, 0, 0))))
    assert (found.id, found.subject, found.severity) == ("worker-restarted", "http://a", Severity.WARNING)
    assert Evidence("restarts in the window", 1) in found.evidence
    assert Evidence("blocks it holds again", 7) in found.evidence
    # restarts before the window, and events that were lost while the engine lived
    assert diagnose(watched((2, 2, 2), (0, 1, 1))) == ()


def test_silent_events_are_told_with_the_address_that_is_listened_at() -> None:
    events = EventsFacts("connecting", "no connection to tcp://a:1", endpoint="tcp://a:1")
    row = WorkerRow("http://a", state="ready", model="m", events=events)
    found = only(diagnose(facts(replica=replica(row))))
    assert (found.id, found.severity) == ("events-silent", Severity.WARNING)
    assert Evidence("events address", "tcp://a:1") in found.evidence


def seen(*events: EventsFacts) -> Facts:
    """One worker, as each of several replicas sees its events."""
    rows = [(WorkerRow("http://a", state="ready", model="m", events=each),) for each in events]
    return Facts(10.0, [Replica(f"r{i}", Series(), row, row) for i, row in enumerate(rows)], ())


CURRENT = EventsFacts("mirroring", "another replica follows its engine; here: following", mirror="following")


def test_a_mirror_that_is_current_hears_all_there_is() -> None:
    assert diagnose(seen(CURRENT)) == ()
    assert diagnose(seen(CURRENT, FOLLOWING)) == ()
    # an engine's agent writes, and every replica mirrors
    assert diagnose(seen(CURRENT, CURRENT)) == ()


@pytest.mark.parametrize("mirror", ["loading", "empty", "stale"])
def test_a_mirror_that_is_behind_is_told(mirror: str) -> None:
    found = only(diagnose(seen(FOLLOWING, EventsFacts("mirroring", mirror=mirror))))
    assert (found.id, found.severity) == ("events-silent", Severity.WARNING)
    assert Evidence("replica", "r1") in found.evidence
    assert "does not come through Redis" in found.cause


def test_a_mirror_asked_first_does_not_hide_the_follower_that_hears_nothing() -> None:
    for replicas in ((CURRENT, EventsFacts("silent")), (EventsFacts("connecting"), EventsFacts("silent"))):
        found = only(diagnose(seen(*replicas)))
        assert (found.id, found.severity) == ("events-silent", Severity.CRITICAL)
        assert Evidence("replica", "r1") in found.evidence


def test_a_cause_hides_what_follows_from_it() -> None:
    row = WorkerRow("http://a", state="ready", model="m", events=EventsFacts("silent"))
    sick = engine(num_requests_running=(0, 0))
    for scrape in sick.series.scrapes:
        scrape.samples["vllm:cache_config_info"] = {(("enable_prefix_caching", "False"),): 1.0}
    assert {f.id for f in diagnose(facts(replica=replica(row)))} == {"events-silent"}
    assert {f.id for f in diagnose(facts(sick, replica=replica(row)))} == {"prefix-caching-off"}


def turns(late_tokens: int, late_s: float, uncached: int) -> list[dict[str, object]]:
    early = {"prompt_tokens": 100, "uncached_tokens": 100, "ttft_s": 0.1, "total_s": 0.2}
    late = {"prompt_tokens": late_tokens, "uncached_tokens": uncached, "ttft_s": late_s, "total_s": 1.0}
    return [{"first_turn": 1, "replies": 20, **early}, {"first_turn": 9, "replies": 20, **late}]


def test_slower_by_turn_tells_lost_cache_from_long_context() -> None:
    lost = only(diagnose(facts(replica=replica(turns=turns(2000, 0.9, 1900)))))
    assert lost.id == "context-grows"
    assert "left the cache" in lost.cause
    kept = only(diagnose(facts(replica=replica(turns=turns(2000, 0.9, 60)))))
    assert "still attends" in kept.cause
    assert not any("keep it cached" in remedy for remedy in kept.remedy)


def test_turns_that_stay_fast_are_well() -> None:
    assert diagnose(facts(replica=replica(turns=turns(2000, 0.12, 60)))) == ()
    assert diagnose(facts(replica=replica(turns=turns(110, 0.9, 60)))) == ()


def reuse(distinct: float, ceiling: float, now: float) -> dict[str, object]:
    curve = [[100, 0.1], [200, 0.3], [400, ceiling]]
    seen = {"blocks": 10_000.0, "distinct_blocks": distinct, "ceiling": ceiling, "curve": curve}
    return {"capacity_blocks": 150, "hit_rate_now": now, "reuse": seen}


def test_a_working_set_beyond_the_cache() -> None:
    found = only(diagnose(facts(replica=replica(**reuse(390.0, 0.6, 0.2)))))
    assert found.id == "working-set"
    assert "about 400 blocks" in found.remedy[0]
    assert Evidence("hit rate by blocks", "100: 10 %, 200: 30 %, 400: 60 %") in found.evidence


def test_what_fits_or_is_never_asked_again_is_well() -> None:
    assert diagnose(facts(replica=replica(**reuse(140.0, 0.6, 0.2)))) == ()
    assert diagnose(facts(replica=replica(**reuse(9000.0, 0.05, 0.0)))) == ()


def test_exit_status_by_severity() -> None:
    def one(severity: Severity) -> Finding:
        return Finding("x", severity, "s", "", (), "", (), 1.0)

    assert exit_status([]) == exit_status([one(Severity.NOTE)]) == 0
    assert exit_status([one(Severity.WARNING), one(Severity.NOTE)]) == 1
    assert exit_status([one(Severity.WARNING), one(Severity.CRITICAL)]) == 3


def test_a_finding_as_json() -> None:
    finding = Finding("x", Severity.WARNING, "s", "slow", (Evidence("n", 2.0, "ms"),), "c", ("r",), 0.5)
    assert msgspec.json.decode(msgspec.json.encode(finding.as_dict())) == {
        "id": "x",
        "severity": "warning",
        "subject": "s",
        "symptom": "slow",
        "evidence": [{"name": "n", "value": 2.0, "unit": "ms"}],
        "cause": "c",
        "remedy": ["r"],
        "confidence": 0.5,
        "runbook": "docs/runbooks/x.md",
    }


def test_figures_are_readable() -> None:
    assert [figure(v) for v in (3.0, 0.12345, 1234567.8, 12.34)] == ["3", "0.123", "1,234,568", "12.3"]


def test_every_finding_has_its_runbook() -> None:
    folder = Path(diagnosis.__file__).parent
    named = {
        line.strip().rstrip(",").strip('"')
        for path in folder.glob("*_rules.py")
        for before, line in zip(
            ["", *path.read_text().splitlines()], path.read_text().splitlines(), strict=False
        )
        if before.strip() in ("yield Finding(",)
    }
    assert len(named) == 21
    missing = [name for name in sorted(named) if not (ROOT / "docs" / "runbooks" / f"{name}.md").is_file()]
    assert not missing


@pytest.mark.parametrize("window", ["0", "0s", "0.0m", "soon", "-5s"])
def test_a_window_in_which_nothing_can_be_seen_is_refused(window: str) -> None:
    ran = CliRunner().invoke(command, ["--window", window])
    assert ran.exit_code == 2
    assert "in no time nothing is seen" in ran.output or "is no span of time" in ran.output
