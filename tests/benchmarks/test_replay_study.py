"""From rows to lines, verdicts and pages; every figure by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.replay import study
from benchmarks.replay.aggregate import Line, baselines, grouped, lines
from benchmarks.replay.beside import beside
from benchmarks.replay.cases import FLOOR, HINDSIGHT, Row, Source
from benchmarks.replay.formats import load
from benchmarks.replay.grid import BALANCED, PATIENT, Experiment, full, quick
from benchmarks.replay.page import tables, targets, write_between
from benchmarks.replay.provenance import Origin, merged
from benchmarks.replay.report import draw, label, scatter
from benchmarks.replay.study import known_rows, main, missing, run_all, tasks
from benchmarks.replay.trace import shortened
from benchmarks.replay.traffic import Bursts, Traffic
from benchmarks.replay.verdicts import verdicts


def row(policy: str, seed: int, p99: float, **figures: object) -> Row:
    return {
        "trace": "t",
        "workers": 2,
        "blocks_per_worker": 64,
        "rate": 4.0,
        "profile": "fast",
        "seed": seed,
        "policy": policy,
        "default": policy == "estimated_ttft",
        "replicas": 1,
        "shared": True,
        "hit_rate": 0.4,
        "ceiling_hit_rate": 0.5,
        "balance": 1.2,
        "ttft_p50_s": 0.2,
        "ttft_p90_s": 1.0,
        "ttft_p99_s": p99,
        "floor_ttft_p50_s": 0.1,
        "floor_ttft_p99_s": 2.0,
        "bound_ttft_p50_s": 0.1,
        "bound_ttft_p99_s": 1.0,
        "bound_late": 1,
        "bound_goodput_rps": 3.9,
        "sessions_balance": 1.1,
        "sessions_balance_sorted": 1.02,
        "sessions_balance_unknown": 1.08,
        "goodput_rps": 3.0,
        "floor_goodput_rps": 3.75,
        "tpot_p99_s": 0.05,
        "requests": 200,
        "promise_error": 0.0,
        **figures,
    }


def line(policy: str, **figures: object) -> Line:
    (found,) = lines([row(policy, 0, 2.0)])
    return replace(found, **figures)  # type: ignore[arg-type]


def test_ratios_are_taken_within_a_seed_and_times_averaged_geometrically() -> None:
    (found,) = lines([row("product", 0, 2.0), row("product", 1, 8.0, floor_ttft_p99_s=4.0)])
    assert found.seeds == 2
    assert found.p99_s == pytest.approx(4.0)
    assert found.p99_x == pytest.approx(sqrt(2))  # 1 and 2
    assert (found.p99_low, found.p99_high) == (1.0, 2.0)
    assert found.of_pooled == pytest.approx(0.8)
    assert found.goodput_x == pytest.approx(0.8)
    assert found.bound_goodput == pytest.approx(3.9)
    # of 200 requests two are beyond the 99th percentile
    assert (found.bound_late, found.late_allowed) == (2, 4)


def test_points_are_told_apart_by_fleet_and_rate_and_not_by_seed() -> None:
    rows = [row("a", 0, 1.0), row("a", 1, 1.0), row("a", 0, 1.0, rate=8.0), row("b", 0, 1.0)]
    assert [len(own) for own in grouped(rows).values()] == [3, 1]


def test_each_target_has_its_verdict() -> None:
    found = [
        line(FLOOR, p50_s=0.1, p99_s=2.0, goodput=4.0),
        line("estimated_ttft", p50_s=0.13, p50_x=1.3, p99_s=2.08, p99_x=1.04, of_pooled=0.96, goodput=3.9),
        line("product", p50_s=0.12, p99_s=2.0, p99_x=1.0, goodput=3.8),
        line("explore", p50_s=0.2, p99_s=2.5, p99_x=1.25, goodput=3.6),
    ]
    told = {verdict.name: verdict for verdict in verdicts(found, 4.0, 4.0)}
    assert told["p99"].met is True
    assert told["p50"].met is True  # 1.3 times, but only 30 ms more
    assert told["hit rate"].met is None  # the fleet is at its knee
    assert told["balance"].met is False
    assert (told["not dominated"].met, told["not dominated"].who) == (False, "product")
    assert told["best p99"].met is False
    assert told["best p99"].figure == pytest.approx(1.04)
    # against explore: the product form is of the family
    assert (told["goodput"].met, told["goodput"].who) == (False, "explore")
    assert told["goodput"].figure == pytest.approx(3.9 / 3.6)
    below = {verdict.name: verdict for verdict in verdicts(found, 1.9, 4.0)}
    assert (below["hit rate"].met, below["goodput"].met) == (True, None)


def test_a_page_keeps_what_stands_outside_of_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- a:begin -->\nold\n<!-- a:end -->\nafter\n<!-- b:begin -->\nb\n<!-- b:end -->\n"
    )
    write_between(page, {"a": r"new \1", "nowhere": "x"})
    assert page.read_text() == (
        "before\n<!-- a:begin -->\nnew \\1\n<!-- a:end -->\nafter\n<!-- b:begin -->\nb\n<!-- b:end -->\n"
    )


def test_targets_stand_in_one_table() -> None:
    experiment = Experiment(Source("t", "csv"), 2, (64,), (4.0,), knee=4.0)
    floor = row(FLOOR, 0, 2.0, ttft_p50_s=0.1, goodput_rps=3.75)
    rows = [floor, row("estimated_ttft", 0, 2.0), row("explore", 0, 2.0)]
    table = targets({"e": experiment}, {"e": rows})
    *_head, last = table.splitlines()
    assert last == (
        "| e | 64 | 4 | 1.00 ✓ | 0.50 | 1 of 2 | 2.00 ✗ | 0.80 | 1.20 ✗ | 1.10 1.08 | 0 ✓ | 1.00 ✓ "
        "| 1.000 ✗ (explore) | 1.250 | 1.300 |"
    )
    # 3.2 a second are less than 1.1 times the 3.0 of another family's
    rows = [one | {"bound_goodput_rps": 3.2} for one in rows]
    assert targets({"e": experiment}, {"e": rows}).endswith("| 1.250 | 1.067 (out of reach) |")


def test_traces_as_they_are_and_other_traffic_have_tables_of_their_own() -> None:
    usual = Experiment(Source("t", "csv"), 2, (64,), (4.0,), knee=4.0)
    bursts = replace(usual, source=Source("t", "csv", traffic=Traffic(bursts=Bursts(10, 4))))
    few = [row(FLOOR, 0, 2.0), row("estimated_ttft", 0, 2.1)]
    near = [*few, row("explore", 0, 3.0)]
    rows = {"usual": near, "bursts": near, "cold": [*few, row("prefix_gate", 0, 2.5)]}
    told = tables({"usual": usual, "bursts": bursts, "cold": bursts}, rows, [])
    assert [line.split(" | ")[0] for line in told["targets"].splitlines()[2:]] == ["| usual"]
    assert [line.split(" | ")[0] for line in told["traffic"].splitlines()[2:]] == ["| bursts", "| cold"]
    assert told["traffic-policies"].splitlines() == [
        "| policy | bursts | cold |",
        "|---|--:|--:|",
        "| **estimated_ttft** | 1.05 | 1.05 |",
        "| explore | 1.50 | – |",
        "| prefix_gate | – | 1.25 |",
    ]


def test_fleets_stand_beside_those_of_other_engines() -> None:
    passing = "h100-8b,long_prefill_token_threshold=1024"
    off = [
        row(policy, seed, p99, profile="h100-8b", floor_ttft_p99_s=2.0)
        for seed in (0, 1, 2)
        for policy, p99 in ((FLOOR, 2.0), ("estimated_ttft", 3.0), ("product", 9.0))
    ]
    off += [row(policy, 0, 1.0, profile="h100-8b", rate=8.0) for policy in (FLOOR, "estimated_ttft")]
    on = [
        row(
            policy,
            seed,
            p99,
            profile=passing,
            floor_ttft_p99_s=2.5,
            goodput_rps=4.5,
            tpot_p99_s=0.06,
            balance=1.1,
        )
        for seed, default in ((0, 2.5), (1, 10.0))
        for policy, p99 in ((FLOOR, 2.5), ("estimated_ttft", default), (PATIENT, 5.0))
    ]
    _head, _line, *body = beside(on, off).splitlines()
    # of the third seed, and of eight requests a second, there is nothing to compare
    assert body == [
        "| 64 | 4 | none | 2.00 | 1.50 | 1.50…1.50 | 1.50 | – | 2.00 | 1.20 | 50 | 1.000 |",
        # 2.5 and 10 s are 5 s in the mean: twice this floor's 2.5 s, and 2.5 times the other's 2 s
        "| 64 | 4 | 1024 | 2.50 | 2.00 | 1.00…4.00 | 2.50 | 2.00 | 2.00 | 1.10 | 60 | 1.500 |",
    ]


def test_what_stands_beside_another_has_its_fleets_and_seeds() -> None:
    experiments = full()
    pairs = [(one, experiments[one.beside]) for one in experiments.values() if one.beside]
    assert pairs
    for one, other in pairs:
        assert set(one.blocks) <= set(other.blocks)
        assert set(one.rates) <= set(other.rates)
        assert set(one.seeds) <= set(other.seeds)
        assert (one.source, one.workers, one.knee or other.knee) == (other.source, other.workers, other.knee)
        # what is compared: engines, or how prompts are sent
        assert set(one.profiles).isdisjoint(other.profiles) is not bool(one.slice_after_s)
        assert one.profiles == other.profiles or not one.slice_after_s
        assert not other.slice_after_s


def test_slices_stand_beside_prompts_in_one_piece() -> None:
    policies = ((FLOOR, 2.0), ("estimated_ttft", 3.0), ("explore", 9.0))
    whole = [row(policy, seed, p99, floor_ttft_p99_s=2.0) for seed in (0, 1) for policy, p99 in policies]
    # of the floor, which has no gateway, and of two variants; the third seed was not sliced
    whole.append(row("estimated_ttft", 2, 50.0))
    sliced = [
        row(policy, seed, p99, slice_after_s=5.0, **figures)
        for seed in (0, 1)
        for policy, p99, figures in (
            (FLOOR, 2.0, {"ttft_p90_s": 0.8}),
            ("estimated_ttft", 2.5, {"goodput_rps": 4.5, "hit_rate": 0.45}),
            (BALANCED, 2.1, {"ttft_p90_s": 1.2, "balance": 1.02}),
        )
    ]
    head, _line, *body = beside(sliced, whole).splitlines()
    assert head == (
        "| blocks | rate | prompts | floor p99 s | × floor p99 | its seeds | × floor p50 | × floor p90 "
        "| of pooled hit rate | busiest/mean | TPOT p99 ms | goodput ÷ floor's |"
    )
    assert body == [
        "| 64 | 4 | in one piece | 2.00 | 1.50 | 1.50…1.50 | 2.00 | 1.00 | 0.800 | 1.20 | 50 | 0.800 |",
        "| 64 | 4 | in slices after 5 s | 2.00 | 1.25 | 1.25…1.25 | 2.00 | 1.25 | 0.900 | 1.20 | 50 "
        "| 1.200 |",
        "| 64 | 4 | in slices after 5 s, balance_weight=1 | 2.00 | 1.05 | 1.05…1.05 | 2.00 | 1.50 | 0.800 "
        "| 1.02 | 50 | 0.800 |",
    ]


def test_a_sliced_experiment_is_judged_against_the_baselines_beside_it() -> None:
    whole = Experiment(Source("t", "csv"), 2, (64,), (4.0,), seeds=(0, 1, 2), knee=4.0)
    sliced = replace(whole, seeds=(0, 1), beside="whole", slice_after_s=5.0)
    own = [
        row(policy, seed, p99, slice_after_s=5.0, goodput_rps=3.6, ttft_p50_s=p50)
        for seed in (0, 1)
        for policy, p99, p50 in ((FLOOR, 2.0, 0.1), ("estimated_ttft", 2.0, 0.2), (BALANCED, 1.0, 0.1))
    ]
    theirs = [
        row(policy, seed, p99)
        for seed in (0, 1)
        for policy, p99 in ((FLOOR, 2.0), ("estimated_ttft", 9.0), ("explore", 1.6))
    ]
    # nobody is compared with another seed, rate, fleet or kind of engine
    others = ({"seed": 2}, {"rate": 8.0}, {"blocks_per_worker": 32}, {"profile": "slow"})
    theirs += [row(policy, 0, 0.1) | other for other in others for policy in (FLOOR, "product")]
    rows = {"whole": theirs, "sliced": own}
    (last,) = targets({"sliced": sliced}, rows).splitlines()[2:]
    # p99 is explore's by 2.0 ÷ 1.6, goodput 1.2 of its 3 a second
    assert last == (
        "| sliced | 64 | 4 | 1.00 ✓ | 0.50 | 2 of 4 | 2.00 ✗ | 0.80 | 1.20 ✗ | 1.10 1.08 | 0 ✓ "
        "| 1.25 ✗ (explore) | 1.200 ✓ | 1.200 | 1.300 |"
    )
    # where nothing is known of the others, nothing is said
    assert len(targets({"sliced": sliced}, {"sliced": own}).splitlines()) == 2
    told = tables({"sliced": sliced}, rows, [])
    assert last in told["targets"]
    assert "| 64 | 4 | in one piece |" in told["sliced-beside"]
    assert "sliced-beside" not in tables({"sliced": sliced}, {"sliced": own}, [])


def test_each_kind_of_engines_is_a_fleet_of_its_own() -> None:
    kinds = ("fast", "fast,long_prefill_token_threshold=64")
    one = Experiment(Source("t", "csv"), 2, (64,), (4.0,), (FLOOR, "product"), (0, 1), profiles=kinds)
    told = [[(case.policy, case.profile, case.seed) for case in cases] for _source, cases in one.points()]
    assert told == [
        [(FLOOR, kinds[0], 0), ("product", kinds[0], 0)],
        [(FLOOR, kinds[1], 0), ("product", kinds[1], 0)],
        [(FLOOR, kinds[0], 1), ("product", kinds[0], 1)],
        [(FLOOR, kinds[1], 1), ("product", kinds[1], 1)],
    ]


def test_a_seed_orders_sessions_anew_and_takes_the_next_stretch_of_conversations() -> None:
    experiments = full()
    sources = [source for source, _cases in experiments["conversation-8"].points()]
    assert {source.skip for source in sources} == {0, 2500, 5000}
    seeds = {source.seed for source, _cases in experiments["agentic-8"].points()}
    assert seeds == {0, 1, 2}
    for experiment in (*experiments.values(), *quick().values()):
        assert all(cases[0].policy == FLOOR for _source, cases in experiment.points())


def test_a_stretch_begins_at_zero(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines_of = [f"{i},20,4,{i} x,s{i % 2}" for i in range(6)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,block_ids,session", *lines_of]))
    stretch = shortened(load(path, "csv"), skip=3, limit=2)
    # the fourth's parent was left out, the fifth's too
    assert [(r.arrival, r.parent) for r in stretch.requests] == [(0.0, None), (1.0, None)]


def test_the_longest_points_come_first() -> None:
    lengths = [len(cases) * (source.limit or 0) for _name, _place, source, cases in tasks(full())]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("again", "kept"),
    [
        ("estimated", [FLOOR, "product"]),
        ("product", [FLOOR, "estimated_ttft", HINDSIGHT]),
        (HINDSIGHT, [FLOOR, "estimated_ttft", "product"]),
        ("estimated_ttft:work_weight", [FLOOR, "estimated_ttft", "product", HINDSIGHT]),
        (None, [FLOOR, "estimated_ttft", "product", HINDSIGHT]),
    ],
)
def test_hindsight_begins_with_the_default_and_is_computed_again_with_it(
    again: str | None, kept: list[str], tmp_path: Path
) -> None:
    there = (FLOOR, "estimated_ttft", "product", HINDSIGHT)
    experiment = Experiment(Source("t", "csv"), 2, (64,), (4.0,), there)
    (tmp_path / "e.json").write_text(json.dumps([row(policy, 0, 1.0) for policy in there]))
    found = known_rows(tmp_path, {"e": experiment}, again)["e"]
    assert sorted(str(one["policy"]) for one in found) == sorted(kept)


def test_a_study_runs_from_trace_to_tables(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    body = [f"{i},{16 * 4},4,{i % 5} b{i % 5} c d,s{i}" for i in range(40)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,block_ids,session", *body]))
    policies = (FLOOR, "estimated_ttft")
    experiment = Experiment(
        Source(str(path), "csv", limit=20), 2, (64,), (4.0,), policies, (0, 1), profiles=("fast",)
    )
    found = sorted(run_all({"e": experiment}, 1))
    assert [(name, place, len(rows)) for name, place, rows in found] == [("e", 0, 2), ("e", 1, 2)]
    rows = [row for _name, _place, own in found for row in own]
    assert [row["seed"] for row in rows] == [0, 0, 1, 1]
    assert all(row["bound_ttft_p99_s"] is not None for row in rows)
    json.dumps(rows)
    # a second time, with one policy's rows taken from what is there
    rows[0]["ttft_p50_s"] = 77.0
    (tmp_path / "e.json").write_text(json.dumps(rows))
    known = known_rows(tmp_path, {"e": experiment}, "estimated")
    assert [row["policy"] for row in known["e"]] == [FLOOR, FLOOR]
    again = [row for _name, _place, own in sorted(run_all({"e": experiment}, 1, known)) for row in own]
    assert [row["ttft_p50_s"] for row in again] == [77.0, *(row["ttft_p50_s"] for row in rows[1:])]
    assert again[1]["floor_ttft_p50_s"] == 77.0
    assert known_rows(tmp_path, {"e": experiment}, "") == {"e": []}
    assert (missing(experiment, rows), missing(experiment, known["e"]), missing(experiment, [])) == (0, 2, 4)
    # rows of twenty requests are none of thirty
    longer = replace(experiment, source=replace(experiment.source, limit=30))
    assert known_rows(tmp_path, {"e": longer}, "estimated") == {"e": []}


def test_of_each_row_stands_where_it_was_computed_last() -> None:
    def run(experiments: str, policies: str, cores: int) -> Origin:
        return Origin(tuple(experiments.split()), policies, "3.12.3", "x86_64 Linux", cores, cores, 60)

    first = run("a b c", "", 16)
    again = merged([first], run("a b", "estimated_ttft", 2))
    assert again == [first, run("a b", "estimated_ttft", 2)]
    # one policy of one experiment once more, then all of the other
    again = merged(again, run("a", "estimated_ttft", 4))
    assert again == [first, run("b", "estimated_ttft", 2), run("a", "estimated_ttft", 4)]
    again = merged(again, run("b", "", 8))
    assert again == [run("a c", "", 16), run("a", "estimated_ttft", 4), run("b", "", 8)]
    assert str(again[1]) == "estimated_ttft… of a: Python 3.12.3, x86_64 Linux, 4 processes on 4 cores, 60 s"
    # of c only what was missing: the rest is still the first run's
    assert merged([first], run("b c", "", 2), ["c"]) == [run("a c", "", 16), run("b c", "", 2)]


def test_refused_requests_make_a_line_of_their_own() -> None:
    rows = [row("product", 0, 2.0), row("product", 0, 1.0, max_ttft_s=5.0, requests=30, refused=10)]
    found = lines(rows)
    assert [(one.max_ttft_s, one.p99_s) for one in found] == [(0.0, 2.0), (5.0, 1.0)]
    assert found[1].refused == 0.25


def test_prompts_in_slices_make_a_line_of_their_own_and_old_rows_were_in_one_piece() -> None:
    rows = [row("product", 0, 2.0), row("product", 0, 1.0, slice_after_s=5.0)]
    rows.append(row("product", 1, 2.0, slice_after_s=0.0))
    found = lines(rows)
    assert [(one.slice_after_s, one.seeds, one.p99_s) for one in found] == [(0.0, 2, 2.0), (5.0, 1, 1.0)]
    sliced = Experiment(
        Source("t", "csv"), 2, (64,), (4.0,), (FLOOR, "product"), profiles=("fast",), slice_after_s=5.0
    )
    whole = replace(sliced, slice_after_s=0.0)
    old = [row(policy, 0, 2.0) for policy in (FLOOR, "product")]
    assert (missing(whole, old), missing(sliced, old)) == (0, 2)
    assert missing(sliced, [one | {"slice_after_s": 5.0} for one in old]) == 0
    table = tables({"e": sliced}, {"e": [row(FLOOR, 0, 2.0, slice_after_s=5.0), rows[1]]}, [])["e"]
    assert [text.split(" | ")[0] for text in table.splitlines()[-2:]] == [
        "| floor",
        "| product, slices after 5 s",
    ]


def test_what_nobody_knows_is_no_baseline() -> None:
    found = [line(name) for name in (FLOOR, "estimated_ttft", "hindsight", "product", PATIENT)]
    # and the default with another weight would be compared with itself
    assert [one.policy for one in baselines(found)] == ["product"]


def test_an_unknown_experiment_is_named() -> None:
    told = CliRunner().invoke(main, ["nonsense"])
    assert told.exit_code == 2
    assert "no experiment nonsense; there are conversation-8" in told.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--quick",), "--quick needs --out"),
        (("--page", "no/such/page.md"), "File 'no/such/page.md' does not exist."),
        (("--again", "nonsense"), "--again: no policy of these begins with 'nonsense'"),
        (("--again", "product", "--missing"), "--again computes what is there, --missing what is not"),
    ],
)
def test_what_would_replace_the_study_or_compute_nothing_is_refused(
    given: tuple[str, ...], said: str
) -> None:
    told = CliRunner().invoke(main, given)
    assert (told.exit_code, said in told.output) == (2, True)


@pytest.mark.parametrize(
    ("names", "told", "page"),
    # all of them to the usual folder; a part of them; all of them elsewhere
    [((), True, True), (("e",), False, False), (("--out", "elsewhere"), True, False)],
)
def test_page_and_tables_are_of_the_whole_study(
    names: tuple[str, ...], told: bool, page: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, docs = tmp_path / "t.csv", tmp_path / "docs"
    trace.write_text(
        "arrival_s,input_tokens,output_tokens,block_ids,session\n0,17,4,a b,x\n1,17,4,a c,y\n2,17,4,d e,z\n"
    )
    docs.mkdir()
    (docs / "routing-study.md").write_text("<!-- e:begin -->\nold\n<!-- e:end -->\n")
    policies = (FLOOR, "estimated_ttft")
    one = Experiment(Source(str(trace), "csv"), 2, (64,), (4.0,), policies, profiles=("l4-8b",))
    monkeypatch.setattr(study, "full", lambda: {"e": one, "f": one})
    monkeypatch.setattr(study, "DOCS", docs)
    monkeypatch.setattr(study, "RESULTS", docs / "routing")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, [*names, "--jobs", "1"], catch_exceptions=False)
    assert done.exit_code == 0
    out = tmp_path / "elsewhere" if "--out" in names else docs / "routing"
    assert (out / "e.json").exists()
    assert (out / "tables.md").exists() is told
    assert ("old" not in (docs / "routing-study.md").read_text()) is page


def test_only_experiments_that_lack_rows_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, docs = tmp_path / "t.csv", tmp_path / "docs"
    trace.write_text(
        "arrival_s,input_tokens,output_tokens,block_ids,session\n0,17,4,a b,x\n1,17,4,a c,y\n2,17,4,d e,z\n"
    )
    docs.mkdir()
    policies = (FLOOR, "estimated_ttft", "explore")
    whole = Experiment(Source(str(trace), "csv"), 2, (64,), (4.0,), policies, knee=4, profiles=("l4-8b",))
    sliced = replace(whole, policies=policies[:2], beside="whole", slice_after_s=5.0)
    monkeypatch.setattr(study, "full", lambda: {"whole": whole, "sliced": sliced})
    monkeypatch.setattr(study, "DOCS", docs)
    monkeypatch.setattr(study, "RESULTS", docs / "routing")
    (docs / "routing-study.md").write_text("<!-- targets:begin -->\n<!-- targets:end -->\n")

    def run(*given: str) -> None:
        done = CliRunner().invoke(main, [*given, "--jobs", "1"], catch_exceptions=False)
        assert done.exit_code == 0

    run("whole")
    there = docs / "routing/whole.json"
    rows = json.loads(there.read_text())
    rows[2]["ttft_p99_s"] = 4 * rows[2]["floor_ttft_p99_s"]  # explore's
    there.write_text(json.dumps(rows))
    kept = there.read_bytes()
    drawn = list[list[str]]()

    def drawing(rows: list[Row], path: Path) -> None:
        drawn.append([label(row) for row in rows])
        draw(rows, path)

    monkeypatch.setattr(study, "draw", drawing)
    run("--missing")
    assert there.read_bytes() == kept
    assert [row["slice_after_s"] for row in json.loads((docs / "routing/sliced.json").read_text())] == [5, 5]
    origins = json.loads((docs / "routing/machine.json").read_text())
    assert [origin["experiments"] for origin in origins] == [["whole"], ["sliced"]]
    # the picture shows what is compared
    assert drawn[-1] == [FLOOR, "estimated_ttft (slices after 5 s)", "estimated_ttft"]
    # both are judged by what was there
    told = (docs / "routing-study.md").read_text().splitlines()[3:-1]
    assert [(line.split(" | ")[0], line.split(" | ")[11]) for line in told] == [
        ("| whole", "0.25 ✓"),
        ("| sliced", "0.25 ✓"),
    ]
    # and the sliced ones alone as well: nothing is lacking, so nothing is written anew
    before = (docs / "routing/sliced.json").stat().st_mtime_ns
    run("sliced", "--missing", "--page", str(docs / "routing-study.md"))
    assert (docs / "routing/sliced.json").stat().st_mtime_ns == before
    assert (docs / "routing-study.md").read_text().splitlines()[3:-1] == told[1:]
    # where a row is gone it alone is computed
    one, two, three = json.loads(kept)
    there.write_text(json.dumps([one, three]))
    run("whole", "--missing")
    assert json.loads(there.read_text()) == [one, two, three]


def test_a_row_is_called_by_all_that_sets_it_apart() -> None:
    assert label(row("product", 0, 2.0)) == "product"
    three = row("product", 0, 2.0, replicas=3, shared=False, max_ttft_s=5.0, slice_after_s=2.5)
    assert label(three) == "product × 3 (nothing shared) (≤ 5 s) (slices after 2.5 s)"
    assert label(row(FLOOR, 0, 2.0, replicas=3, slice_after_s=2.5)) == "floor"


def test_plots_are_pictures(tmp_path: Path) -> None:
    rows = [row(policy, seed, 2.0) for policy in (FLOOR, "estimated_ttft") for seed in (0, 1)]
    scatter(rows, tmp_path / "one.png")
    draw([*rows, row("product", 0, 2.0, rate=8.0)], tmp_path / "more.png")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2
