"""Kept rows of the study are held against the code: one that differs is named, with what it is now."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from benchmarks.replay.cases import Row
from benchmarks.replay.grid import DEFAULT, full
from benchmarks.replay.recheck import kept_rows, main, sample
from benchmarks.replay.study import RESULTS, read_rows

NAME = "replicas-agentic"
ALONE = 1
"""Replicas of the row that is computed here, the quickest of its kind."""


@pytest.fixture
def own_row() -> Row:
    """The default's for one replica, with the first seed."""
    rows = read_rows(RESULTS / f"{NAME}.json")
    return next(row for row in rows if (row["policy"], row["replicas"], row["seed"]) == (DEFAULT, ALONE, 0))


def test_a_row_that_differs_is_named_and_one_that_does_not_passes(own_row: Row, tmp_path: Path) -> None:
    kept = tmp_path / f"{NAME}.json"
    arguments = [NAME, "--rows", "1", "--jobs", "1", "--out", str(tmp_path)]

    kept.write_text(json.dumps([own_row]))
    good = CliRunner().invoke(main, arguments)
    assert (good.exit_code, good.output) == (0, "1 rows of 1 experiments come out as they were kept\n")

    kept.write_text(json.dumps([own_row | {"hit_rate": 0.5}]))
    bad = CliRunner().invoke(main, arguments)
    assert bad.exit_code == 1
    assert (
        f"{NAME}: {DEFAULT}, 1700 blocks, 4/s, seed 0: hit_rate 0.5 kept, {own_row['hit_rate']} now"
        in bad.output
    )
    assert "1 of 1 kept rows do not come out of the code any more" in bad.output


def test_a_sample_has_one_of_the_defaults_rows_and_the_same_seed_draws_the_same() -> None:
    kept = kept_rows({NAME: full()[NAME]}, RESULTS)[NAME]
    drawn = sample(kept, 4, Random(1))
    assert drawn == sample(kept, 4, Random(1))
    assert len(drawn) == 4
    assert len({str(one.case) for one in drawn}) == 4
    assert drawn[0].case.policy == DEFAULT
    assert len(sample(kept, 1000, Random(1))) == len(kept) == 12


def test_without_rows_it_says_what_makes_some(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, [NAME, "--out", str(tmp_path)])
    assert told.exit_code == 1
    assert f"has no rows of {NAME}: make replay-study computes them" in told.output
