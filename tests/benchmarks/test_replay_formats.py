from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.replay.content import Content
from benchmarks.replay.formats import load
from benchmarks.replay.trace import coarser, shortened


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_mooncake(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 0, "input_length": 700, "output_length": 0, "hash_ids": [0, 3]},
        {"timestamp": 3000, "input_length": 2000, "output_length": 7, "hash_ids": [0, 1, 4, 5]},
    ]
    trace = load(written(tmp_path / "t.jsonl.gz", rows), "mooncake")
    # two on one tick of 3 s
    assert [r.arrival for r in trace.requests] == [0.0, 1.5, 3.0]
    assert [r.parent for r in trace.requests] == [None, None, 0]
    assert trace.requests[1].output_tokens == 1
    assert (trace.unit, trace.working_set()) == (512, 6 * 512)


def test_agentic_sessions_share_their_tools_and_nothing_else(tmp_path: Path) -> None:
    turns = [
        {"t": 0.0, "in": 200, "out": 10, "hash_ids": [1, 2, 3], "api_time": 2.0},
        {"t": 1000.0, "in": 260, "out": 20, "hash_ids": [1, 2, 3, 4], "api_time": 1.0},
    ]
    session = {"block_size": 64, "tool_tokens": 64, "system_tokens": 70, "requests": turns}
    path = written(
        tmp_path / "t.jsonl.gz", [session | {"id": "x"}, session | {"id": "y", "system_tokens": 0}]
    )
    trace = load(path, "agentic")
    mine, other = ([r for r in trace.requests if r.session == f"{name}/0"] for name in "xy")
    shared = [a == b for a, b in zip(mine[0].ids, other[0].ids, strict=True)]
    assert shared == [True, False, False, False]
    assert mine[1].ids[:3] == mine[0].ids[:3]
    # 998 s of pause are cut to 60
    assert mine[1].arrival - mine[0].arrival == pytest.approx(62.0)
    assert mine[1].think_s == 60.0


def test_bailian_and_csv(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"chat_id": 7, "parent_chat_id": -1, "timestamp": 10.0, "input_length": 33, "output_length": 4}
        | {"hash_ids": [9, 8, 7]},
        {"chat_id": 8, "parent_chat_id": 7, "timestamp": 11.0, "input_length": 40, "output_length": 4}
        | {"hash_ids": [9, 8, 6]},
    ]
    first, second = load(written(tmp_path / "t.jsonl.gz", rows), "bailian").requests
    assert (first.arrival, second.arrival, second.parent) == (0.0, 1.0, 0)
    assert first.ids[:2] == second.ids[:2]
    assert first.session == second.session
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,block_ids,session\n0,17,2,a b,s\n1,33,2,a b c,s\n")
    first, second = load(path, "csv").requests
    assert (second.parent, second.ids[:2]) == (0, first.ids)


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl.gz", [{"timestamp": 0}])
    with pytest.raises(ValueError, match="is no mooncake trace"):
        load(path, "mooncake")
    with pytest.raises(ValueError, match="unknown trace format 'x'"):
        load(path, "x")


def test_finer_and_coarser_blocks_find_the_same_prefixes(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"timestamp": 0, "input_length": 2049, "output_length": 1, "hash_ids": [0, 1, 2, 3, 9]},
        {"timestamp": 9000, "input_length": 2049, "output_length": 1, "hash_ids": [0, 1, 2, 4, 8]},
    ]
    trace = load(written(tmp_path / "t.jsonl.gz", rows), "mooncake")
    fine, own = Content(trace, 16), Content(trace, 512)
    for content, blocks in ((fine, 3 * 32), (own, 3)):
        one, two = content.cacheable_keys(0), content.cacheable_keys(1)
        assert sum(a == b for a, b in zip(one, two, strict=True)) == blocks
    pairs = Content(coarser(trace, 1024), 1024)
    assert pairs.cacheable_keys(0)[0] == pairs.cacheable_keys(1)[0]
    assert pairs.cacheable_keys(0)[1] != pairs.cacheable_keys(1)[1]


def test_long_requests_are_left_out_and_nobody_waits_for_them(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1200, "output_length": 1, "hash_ids": [0, 1, 3]},
    ]
    trace = load(written(tmp_path / "t.jsonl.gz", rows), "mooncake")
    assert trace.requests[1].parent == 0
    (only,) = shortened(trace, longest=1500).requests
    assert (only.input_tokens, only.parent) == (1200, None)
