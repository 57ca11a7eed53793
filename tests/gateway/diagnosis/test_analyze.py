"""Logs and traces read offline: figures by hand, and the command as a user runs it."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli.analyze import command
from gateway.diagnosis.fleet_replay import LruCache, by_prefix, in_turn, replay
from gateway.errors import ConfigError
from gateway.types import BlockKey

ROOT = Path(__file__).resolve().parents[3]


def analyze(path: Path, *args: str) -> dict[str, Any]:
    ran = CliRunner().invoke(command, [str(path), "--json", *args], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    result: dict[str, Any] = json.loads(ran.output)
    return result


def log(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def chat(system: str, user: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "m", "messages": messages}


def words(seed: int, count: int) -> str:
    return " ".join(str(random.Random(seed * 1000 + n).randrange(10**6)) for n in range(count))


def keys(*numbers: int) -> list[BlockKey]:
    return [BlockKey(n) for n in numbers]


def test_an_lru_cache_by_hand() -> None:
    cache = LruCache(3)
    assert cache.serve(keys(1, 2, 3)) == 0
    assert cache.serve(keys(1, 2, 4)) == 2  # 3 leaves: the tail of the older prompt
    assert cache.match(keys(1, 2, 3)) == 2
    assert cache.serve(keys(9)) == 0  # 4 leaves: the tail goes before its parents
    assert cache.match(keys(1, 2, 4)) == 2
    assert cache.work == 3 + 1 + 1


def test_two_prompts_by_prefix_and_in_turn() -> None:
    a, b = keys(1, 2), keys(3, 4)
    prompts = [a, b, b, a, a, b]
    # by prefix: each stays where it was, so all but the first two are served
    assert replay(prompts, 2, None, by_prefix) == pytest.approx(8 / 12)
    # in turn: worker 0 gets a b a, worker 1 gets b a b
    assert replay(prompts, 2, None, in_turn) == pytest.approx(4 / 12)


def test_a_mooncake_trace_by_hand(tmp_path: Path) -> None:
    # of n tokens (n-1)//512 blocks can be cached
    path = log(
        tmp_path / "trace.jsonl",
        {"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [0, 1, 2]},
        {"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [0, 5]},
        {"timestamp": 2, "input_length": 1025, "output_length": 1, "hash_ids": [0, 1, 9]},
    )
    result = analyze(path, "--workers", "1,2")
    assert (result["prompts"], result["tokens"], result["block_size"]) == (3, 3074, 512)
    assert (result["blocks"], result["distinct_blocks"]) == (2 + 1 + 2, 2)
    # 0 is served twice, 1 once
    assert result["achievable_hit_rate"] == pytest.approx(3 / 5)
    assert result["fleets"][0]["by_prefix"] == pytest.approx(3 / 5)
    assert result["divergence"]["prompts"] == 0


def test_lengths_and_ids_that_can_not_be_are_no_requests(tmp_path: Path) -> None:
    path = log(
        tmp_path / "trace.jsonl",
        {"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [0, 1, 2]},
        {"timestamp": 1, "input_length": -5, "output_length": 1, "hash_ids": [0]},
        {"timestamp": 2, "input_length": 1025, "output_length": 1, "hash_ids": [1 << 200, 1]},
    )
    result = analyze(path)
    assert (result["prompts"], result["tokens"], result["unread_lines"]) == (1, 1025, 2)


def test_a_real_trace_has_the_hit_rate_that_a_set_gives() -> None:
    path = ROOT / "benchmarks" / "traces" / "mooncake_conversation_trace.jsonl.gz"
    if not path.is_file():
        pytest.skip("the trace is not in this checkout")
    seen: set[int] = set()
    blocks = hits = 0
    with gzip.open(path) as lines:
        head = list(islice(lines, 2000))
    for line in head:
        row = json.loads(line)
        ids = row["hash_ids"][: (row["input_length"] - 1) // 512]
        blocks += len(ids)
        hits += sum(one in seen for one in ids)
        seen.update(ids)
    ran = CliRunner().invoke(
        command,
        ["-", "--json", "--workers", "1"],
        input=b"".join(head),
        catch_exceptions=False,
    )
    result = json.loads(ran.output)
    assert result["blocks"] == blocks
    assert result["achievable_hit_rate"] == pytest.approx(hits / blocks, abs=0.01)


def test_a_date_in_front_is_found_and_said(tmp_path: Path) -> None:
    system = words(1, 200)
    path = log(tmp_path / "l.jsonl", *(chat(f"{words(50 + n, 2)} {system}", words(n, 5)) for n in range(20)))
    result = analyze(path)
    assert result["tokenizer"] == "bytes"
    (kind,) = result["divergence"]["kinds"]
    assert kind["prompts"] == 20
    assert kind["diverges_at_block"] == 0
    assert kind["equal_text_tokens"] > 5 * kind["equal_prefix_tokens"]
    assert "move what changes behind what stays" in result["advice"][0]


def test_an_id_before_a_sentence_said_over_and_over_is_found_and_said(tmp_path: Path) -> None:
    """About 430 tokens each, 420 of them equal behind an id: no cache has any, and advice says one thing."""
    sentence = "You are a helpful assistant. "
    bodies = [chat(f"{n * 7919}.{n} {sentence * 60}", f"q{n}" * 20) for n in range(30)]
    result = analyze(log(tmp_path / "l", *bodies))
    (kind,) = result["divergence"]["kinds"]
    assert kind["prompts"] == 30
    assert kind["diverges_at_block"] == 0
    assert kind["equal_text_tokens"] >= 420 - 2 * 64
    assert result["achievable_hit_rate"] == 0
    first, second = result["advice"]
    assert "differ in the first block" in first
    assert second == (
        "as they are, a cache serves 0 % of blocks at best: until what changes has moved, choose workers by "
        "load"
    )


def test_a_fixed_system_prompt_is_praised(tmp_path: Path) -> None:
    system = words(1, 200)
    path = log(tmp_path / "l.jsonl", *(chat(system, words(n, 3)) for n in range(20)))
    result = analyze(path, "--workers", "4")
    assert result["divergence"]["kinds"] == []
    assert result["achievable_hit_rate"] > 0.85
    assert any(line.startswith("a cache of") for line in result["advice"])


def test_strangers_are_told_to_go_by_load(tmp_path: Path) -> None:
    path = log(tmp_path / "l.jsonl", *({"model": "m", "prompt": words(n, 60)} for n in range(10)))
    assert analyze(path)["advice"] == [
        "prompts share next to nothing (0 % at best): choose workers by load, and spend memory on batch size"
    ]


def test_wrapped_bodies_gzip_and_lines_that_are_none(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": "x" * 640}
    lines = [{"custom_id": "1", "body": body}, {"request": body}, body, [1], {"nothing": 1}]
    path = tmp_path / "l.jsonl.gz"
    path.write_bytes(
        gzip.compress(b"".join(json.dumps(one).encode() + b"\n" for one in lines) + b"no json\n\n")
    )
    result = analyze(path)
    assert (result["prompts"], result["unread_lines"]) == (3, 3)
    # 160 tokens of four bytes: nine blocks that can be cached, the same three times
    assert (result["blocks"], result["distinct_blocks"]) == (27, 9)
    assert result["achievable_hit_rate"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_packed_or_not_and_a_byte_order_mark_is_no_text(packed: bool) -> None:
    """Three equal prompts of 160 tokens: nine blocks each; none is lost to the mark or to looking ahead."""
    line = json.dumps({"model": "m", "prompt": "x" * 640}).encode() + b"\n"
    data = b"\xef\xbb\xbf" + 3 * line
    command_line = [sys.executable, "-m", "gateway", "analyze", "-", "--json"]
    ran = subprocess.run(
        command_line, input=gzip.compress(data) if packed else data, cwd=ROOT, capture_output=True, check=True
    )
    result = json.loads(ran.stdout)
    assert (result["prompts"], result["unread_lines"], result["blocks"]) == (3, 0, 27)
    assert result["distinct_estimated"] is False


def test_a_broken_gzip_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "l.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 99)[:-20])
    ran = CliRunner().invoke(command, [str(path)])
    assert isinstance(ran.exception, ConfigError)
    assert f"cannot read {path}" in str(ran.exception)


def test_one_is_one(tmp_path: Path) -> None:
    path = log(tmp_path / "l", {"model": "m", "prompt": "x" * 640}, {"nothing": 1})
    shown = CliRunner().invoke(command, [str(path)], catch_exceptions=False).output
    assert shown.startswith("1 prompt, ")
    assert "1 line is no request and was left out" in shown


def test_adapters_of_another_salt_share_nothing(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": "x" * 640}
    path = log(tmp_path / "l.jsonl", body, {**body, "cache_salt": "s"}, {**body, "model": "n"})
    assert analyze(path)["achievable_hit_rate"] == 0.0


def test_a_tokenizer_gives_the_engine_s_tokens(tmp_path: Path) -> None:
    tokenizer = ROOT / "tests" / "data" / "tokenizers" / "vllm-tiny"
    path = log(tmp_path / "l.jsonl", chat("You are helpful.", "Hello"))
    result = analyze(path, "--tokenizer", str(tokenizer))
    assert result["tokenizer"] == "local"
    assert result["tokens"] > 0


def test_tables_for_people(tmp_path: Path) -> None:
    system = words(1, 200)
    path = log(tmp_path / "l.jsonl", *(chat(f"{words(50 + n, 2)} {system}", words(n, 5)) for n in range(20)))
    ran = CliRunner().invoke(command, [str(path)], catch_exceptions=False)
    assert "20 prompts, about" in ran.output
    assert "kinds of prompts that lose their prefix" in ran.output
    assert system[:40] not in ran.output


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text("hello\n")
    with pytest.raises(ConfigError, match="no line is a request"):
        CliRunner().invoke(command, [str(path)], catch_exceptions=False)
    with pytest.raises(ConfigError, match="cannot read"):
        CliRunner().invoke(command, [str(tmp_path / "absent")], catch_exceptions=False)


def test_sessions_of_a_line_each_by_hand(tmp_path: Path) -> None:
    """Blocks of 64; ids are the session's own: 1 of one is not 1 of the other."""
    turns = [{"t": 0.0, "in": 129, "hash_ids": [1, 2, 3]}, {"t": 9.0, "in": 193, "hash_ids": [1, 2, 3, 4]}]
    session = {"block_size": 64, "hash_id_scope": "local", "requests": turns}
    path = log(tmp_path / "s.jsonl", {"id": "a", **session}, {"id": "b", **session})
    result = analyze(path)
    assert (result["prompts"], result["tokens"], result["block_size"]) == (4, 2 * (129 + 193), 64)
    # 2 and 3 blocks can be cached, of which the second turn finds 2 again
    assert (result["blocks"], result["distinct_blocks"]) == (10, 6)
    assert result["achievable_hit_rate"] == pytest.approx(4 / 10)
    path = log(tmp_path / "g.jsonl", *({"id": i, **session, "hash_id_scope": "global"} for i in "ab"))
    assert analyze(path)["distinct_blocks"] == 3


def test_the_bundled_sessions_are_read() -> None:
    path = ROOT / "benchmarks" / "traces" / "agentic_sessions.jsonl.gz"
    if not path.is_file():
        pytest.skip("the trace is not in this checkout")
    with gzip.open(path) as lines:
        sessions = [json.loads(line) for line in lines]
    requests = [one for session in sessions for one in session["requests"]]
    result = analyze(path, "--workers", "1")
    assert (result["prompts"], result["unread_lines"]) == (len(requests), 0)
    assert result["tokens"] == sum(one["in"] for one in requests)


def test_an_anthropic_system_prompt_counts(tmp_path: Path) -> None:
    """800 letters of system are 200 tokens, that all requests begin with."""
    bodies = [
        {
            "model": "m",
            "max_tokens": 1,
            "system": [{"type": "text", "text": "s" * 800}],
            "messages": [{"role": "user", "content": words(n, 3)}],
        }
        for n in range(10)
    ]
    result = analyze(log(tmp_path / "a.jsonl", *bodies))
    assert result["tokens"] >= 10 * 200
    assert result["achievable_hit_rate"] > 0.8
    tools = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "t" * 800}]}
    result = analyze(log(tmp_path / "t.jsonl", {"model": "m", "messages": [tools]}))
    assert result["tokens"] >= 200


def test_responses_bodies_are_read(tmp_path: Path) -> None:
    bodies = [{"model": "m", "instructions": "s" * 800, "input": words(n, 3)} for n in range(10)]
    result = analyze(log(tmp_path / "r.jsonl", *bodies))
    assert (result["prompts"], result["unread_lines"]) == (10, 0)
    assert result["achievable_hit_rate"] > 0.8
    # a batch file says which endpoint a body is for: embeddings are no prompts of a chat
    batch = [{"url": "/v1/responses", "body": bodies[0]}, {"url": "/v1/embeddings", "body": {"input": "x"}}]
    result = analyze(log(tmp_path / "b.jsonl", *batch))
    assert (result["prompts"], result["unread_lines"]) == (1, 1)


@pytest.mark.parametrize("indent", [None, 2])
def test_one_json_array_is_a_log_too(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"model": "m", "prompt": "x" * 640}] * 3 + [1], indent=indent))
    result = analyze(path)
    assert (result["prompts"], result["unread_lines"], result["blocks"]) == (3, 1, 27)


def test_exit_statuses_are_those_of_the_help(tmp_path: Path) -> None:
    def status(*args: str) -> int:
        command_line = [sys.executable, "-m", "gateway", "analyze", *args]
        return subprocess.run(command_line, cwd=ROOT, capture_output=True, check=False).returncode

    assert status(str(log(tmp_path / "l.jsonl", chat("a", "b")))) == 0
    assert status(str(log(tmp_path / "n.jsonl", {"nothing": 1}))) == 2
    assert status(str(tmp_path / "absent")) == 2
