"""The studies' pages tell what the kept rows say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.live.__main__ import PAGE as LIVE_PAGE
from benchmarks.live.__main__ import RESULTS as LIVE_RESULTS
from benchmarks.live.report import markdown, medians
from benchmarks.replay.aggregate import Line, baselines, grouped, lines, only
from benchmarks.replay.grid import BEST, DEFAULT, full
from benchmarks.replay.page import tables, write_between
from benchmarks.replay.study import DOCS, RESULTS, known_origins, read_rows

PAGE = DOCS / "routing-study.md"
EVERYONE = (
    *(f"{name}-{workers}" for workers in (8, 32) for name in ("conversation", "agentic")),
    *(f"memory-{name}-32" for name in ("conversation", "agentic")),
)
"""The experiments with all policies on the usual engines."""


def lines_of(experiment: str) -> dict[tuple[int, float], list[Line]]:
    """By blocks and rate."""
    rows = read_rows(RESULTS / f"{experiment}.json")
    return {(point[2], point[3]): lines(its_rows) for point, its_rows in grouped(rows).items()}


def test_tables_are_of_the_kept_rows(tmp_path: Path) -> None:
    experiments = full()
    texts = tables(
        experiments,
        {name: read_rows(RESULTS / f"{name}.json") for name in experiments},
        known_origins(RESULTS / "machine.json"),
    )
    anew = tmp_path / "page.md"
    anew.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    write_between(anew, texts)
    assert anew.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    kept = (RESULTS / "tables.md").read_text(encoding="utf-8")
    assert [name for name, text in texts.items() if f"## {name}\n{text}\n" not in kept] == []


def test_the_table_of_flag_and_slices_is_of_the_kept_rows() -> None:
    told = []
    for workers, blocks, rate in (
        *((8, blocks, rate) for blocks, rates in ((850, (2, 5)), (1700, (2, 4, 5))) for rate in rates),
        *((8, 3400, rate) for rate in (2, 4, 5)),
        *((32, 1700, rate) for rate in (8, 20)),
    ):
        fleet, among = (blocks, float(rate)), "memory" if blocks == 850 else f"agentic-{workers}"
        usual = lines_of(f"agentic-{workers}")[fleet]
        floor, passing = only(usual, "floor"), only(lines_of(f"passing-{among}")[fleet], DEFAULT)
        figures = (
            only(usual, DEFAULT).p99_x,
            passing.p99_s / floor.p99_s,
            only(lines_of(f"sliced-{among}")[fleet], DEFAULT).p99_x,
        )
        told.append(f"| {workers} | {blocks} | {rate} | " + " | ".join(f"{x:.2f}" for x in figures) + " |")
    head = (
        "| workers | blocks | rate | in one piece | threshold 1,024 | slices after 5 s |",
        "|---|" + "--:|" * 5,
    )
    assert "\n".join((*head, *told, "\n")) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("experiment", EVERYONE)
def test_who_is_not_among_the_best_is_nowhere_near(experiment: str) -> None:
    """So it is enough to replay these beside engines that let short prompts pass."""
    knee = full()[experiment].knee
    for (_blocks, rate), found in lines_of(experiment).items():
        others = baselines(found)
        near = near_by([line.p50_s for line in others]) | near_by([line.p99_s for line in others])
        if rate == knee:
            near |= near_by([1 / line.goodput for line in others])
        assert {others[number].policy for number in near} <= set(BEST)


def near_by(values: Sequence[float]) -> set[int]:
    """Places of those within 2 % of the least."""
    return {place for place, value in enumerate(values) if value <= 1.02 * min(values)}


def test_no_baseline_is_better_by_much() -> None:
    """In p99, and in p50 and p99 both: at the two points that the page names."""
    both = []
    changed = [name for name, one in full().items() if one.changed]
    passing = [f"passing-{name}" for name in ("agentic-8", "agentic-32", "conversation-8")]
    for experiment in (*EVERYONE, *changed, *passing):
        for fleet, found in lines_of(experiment).items():
            own = only(found, DEFAULT)
            for other in baselines(found):
                assert own.p99_s <= 1.02 * other.p99_s
                if other.p50_s < own.p50_s and other.p99_s < own.p99_s:
                    p50, p99 = 1 - other.p50_s / own.p50_s, 1 - other.p99_s / own.p99_s
                    both.append((experiment, *fleet, other.policy, f"{p50:.1%} {p99:.1%}"))
    assert both == [
        ("conversation-8", 600, 3.0, "product", "0.8% 0.5%"),
        ("passing-agentic-8", 1700, 2.0, "explore", "2.1% 0.2%"),
    ]


def test_the_live_page_is_of_the_kept_rows() -> None:
    kept = json.loads((DOCS.parent / LIVE_RESULTS).read_text())
    assert kept["medians"] == medians(kept["rows"])
    assert markdown(kept["medians"]).strip() in (DOCS.parent / LIVE_PAGE).read_text(encoding="utf-8")
