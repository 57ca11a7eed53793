"""A trace that cannot be replayed: which line, and what to mend, the same way for all formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay.formats import load

HEAD = "arrival_s,input_tokens,output_tokens,block_ids,session"
GOOD: dict[str, dict[str, Any]] = {
    "mooncake": {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    "bailian": {
        "chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "output_length": 4,
        "hash_ids": [9, 8, 7],
    },
    "agentic": {
        "id": "x", "block_size": 64, "tool_tokens": 64, "system_tokens": 0,
        "requests": [{"t": 0.0, "in": 200, "out": 10, "hash_ids": [1, 2, 3], "api_time": 2.0}],
    },
}  # fmt: skip
INF, NAN = float("inf"), float("nan")


def said_of(path: Path, content: str, kind: str) -> str:
    path.write_text(content)
    with pytest.raises(ValueError, match=path.name) as told:
        load(path, kind)
    assert type(told.value) is ValueError
    message = str(told.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(f"{path} ")


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_row_is_a_request(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"\n{json.dumps(GOOD[kind])}\n\n")
    assert [request.arrival for request in load(path, kind).requests] == [0.0]


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (
            "mooncake",
            {"hash_ids": [0]},
            "hash_ids names 1 blocks of 512 tokens; 1100 tokens fill 2, and each",
        ),
        (
            "bailian",
            {"hash_ids": [1]},
            "hash_ids names 1 blocks of 16 tokens; 40 tokens fill 2, and each needs",
        ),
        ("mooncake", {"hash_ids": [], "input_length": 10}, "hash_ids names no block"),
        ("mooncake", {"hash_ids": [0, -1]}, "block -1 is no whole number from 0 to 2147483647"),
        ("mooncake", {"hash_ids": [0, 2**31]}, "block 2147483648 is no whole number from 0 to 2147483647"),
        ("bailian", {"hash_ids": [[1], [2]]}, "hash_ids is no list of blocks' names"),
        ("bailian", {"hash_ids": 7}, "hash_ids is no list of blocks' names"),
        ("mooncake", {"hash_ids": None}, "line 2 has no hash_ids"),
        ("mooncake", {"timestamp": NAN}, "timestamp is nan, which is no finite number"),
        ("bailian", {"timestamp": INF}, "timestamp is inf, which is no finite number"),
        ("mooncake", {"timestamp": "noon"}, "timestamp is 'noon', which is no finite number"),
        ("mooncake", {"timestamp": True}, "timestamp is True, which is no finite number"),
        ("mooncake", {"input_length": -5}, "input_length is -5, which is no whole number of 1 or more"),
        ("bailian", {"input_length": 0}, "input_length is 0, which is no whole number of 1 or more"),
        ("bailian", {"output_length": -1}, "output_length is -1, which is no whole number of 0 or more"),
        ("mooncake", {"output_length": 1.5}, "output_length is 1.5, which is no whole number of 0 or more"),
        ("bailian", {"parent_chat_id": None}, "line 2 has no parent_chat_id"),
        ("agentic", {"requests": []}, "line 2 has no requests: leave it out"),
        ("agentic", {"requests": None}, "line 2 has no requests"),
        ("agentic", {"requests": [1]}, "requests is no list of requests"),
        ("agentic", {"block_size": 32}, "line 2: blocks of 32 tokens, 64 were expected"),
        ("agentic", {"tool_tokens": -1}, "tool_tokens is -1, which is no whole number of 0 or more"),
        ("agentic", {"system_tokens": None}, "line 2 has no system_tokens"),
        ("agentic", {"id": None}, "line 2 has no id"),
    ],
)
def test_a_bad_row_is_named(kind: str, change: dict[str, Any], said: str, tmp_path: Path) -> None:
    lines = [json.dumps(GOOD[kind]), json.dumps(GOOD[kind] | change)]
    told = said_of(tmp_path / "t.jsonl", "\n".join(lines), kind)
    assert told.startswith(f"is no {kind} trace: line 2")
    assert said in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"t": INF}, "t is inf, which is no finite number"),
        ({"api_time": NAN}, "api_time is nan, which is no finite number"),
        ({"in": -1}, "in is -1, which is no whole number of 1 or more"),
        ({"out": -1}, "out is -1, which is no whole number of 0 or more"),
        (
            {"hash_ids": [1]},
            "hash_ids names 1 blocks of 64 tokens; 200 tokens fill 3, and each needs its name",
        ),
    ],
)
def test_a_sessions_bad_request_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    session = GOOD["agentic"]
    bad = session | {"requests": [*session["requests"], session["requests"][0] | change]}
    told = said_of(tmp_path / "t.jsonl", json.dumps(bad), "agentic")
    assert told == f"is no agentic trace: line 1, requests[1]: {said}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0.0,40", "line 3 has no output_tokens"),
        ("0.0,40,10", "line 3 has no block_ids"),
        (
            "0.0,40,10,,s",
            "line 3: block_ids names 0 blocks of 16 tokens; 40 tokens fill 2, and each needs its name",
        ),
        ("0.0,4,10,,s", "line 3: block_ids names no block; a prompt shorter than one still has its own name"),
        (
            "0.0,40,10,a,s",
            "line 3: block_ids names 1 blocks of 16 tokens; 40 tokens fill 2, and each needs its name",
        ),
        ("nan,40,10,a b,s", "line 3: arrival_s is 'nan', which is no finite number"),
        ("-inf,40,10,a b,s", "line 3: arrival_s is '-inf', which is no finite number"),
        (",40,10,a b,s", "line 3: arrival_s is '', which is no finite number"),
        ("0.0,-40,10,a b,s", "line 3: input_tokens is '-40', which is no whole number of 1 or more"),
        ("0.0,40,-1,a b,s", "line 3: output_tokens is '-1', which is no whole number of 0 or more"),
    ],
)
def test_a_bad_line_of_a_csv_is_named(line: str, said: str, tmp_path: Path) -> None:
    told = said_of(tmp_path / "t.csv", f"{HEAD}\n0.0,40,10,a b,s\n{line}\n", "csv")
    assert told == f"is no csv trace: {said}"


def test_a_csv_has_all_columns(tmp_path: Path) -> None:
    told = said_of(tmp_path / "t.csv", "arrival,input_tokens,output_tokens,session\n0,40,10,s\n", "csv")
    assert told == "is no csv trace: its first line has no column arrival_s, block_ids"


def test_a_csv_of_a_spreadsheet_has_a_mark_before_its_first_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(f"\ufeff{HEAD}\r\n5.0,40,10,a b,s\r\n6.5,72,10,a b c d,s\r\n".encode())
    # time begins with the first
    assert [request.arrival for request in load(path, "csv").requests] == [0.0, 1.5]


@pytest.mark.parametrize(
    ("kind", "content"),
    [("mooncake", ""), ("agentic", ""), ("bailian", "\n"), ("csv", f"{HEAD}\n")],
)
def test_an_empty_trace_has_no_requests(kind: str, content: str, tmp_path: Path) -> None:
    assert said_of(tmp_path / "t", content, kind) == "has no requests"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is no JSON: Expecting property name"),
        ("[1]", "line 1 is no JSON object"),
        ("[" * 100_000, "line 1 is no JSON: "),
        ('{"timestamp": ' + "9" * 5000 + "}", "line 1 is no JSON: Exceeds the limit (4300 digits)"),
    ],
)
@pytest.mark.parametrize("kind", GOOD)
def test_what_is_no_json_is_named(kind: str, line: str, said: str, tmp_path: Path) -> None:
    assert said_of(tmp_path / "t.jsonl", line, kind).startswith(f"is no {kind} trace: {said}")


def test_a_damaged_file_is_said_to_be(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{json.dumps(GOOD['mooncake'])}\n" for _ in range(50)).encode(), mtime=0)
    turned = bytearray(whole)
    turned[-8] ^= 0xFF  # of the checksum
    broken = bytearray(whole)
    broken[10:20] = b"\xff" * 10
    path = tmp_path / "t.jsonl.gz"
    for content in (whole[:-9], whole[:15], bytes(turned), bytes(broken), b"no gzip at all"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"t\.jsonl\.gz is damaged, or only a part of its \.gz: "):
            load(path, "mooncake")
    unnamed = tmp_path / "t.jsonl"
    unnamed.write_bytes(whole)
    with pytest.raises(ValueError, match=r"is no text in UTF-8; a compressed file is to end in \.gz"):
        load(unnamed, "mooncake")
