"""The match that `make micro` times, and how it is handed to Dynamo's RadixTree and back."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from benchmarks import matching, micro, timing
from benchmarks.matching import (
    HARDEST,
    NEXT_TURN,
    PEER_HARDEST,
    PEER_NEXT_TURN,
    PEER_READING,
    NotHere,
    beside,
    differing,
    dynamo,
    index_of,
    scenario,
)
from benchmarks.micro_dynamo import stored
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.types import CacheScope, WorkerId

LIBRARY = """
import json

class Scores:
    def __init__(self, scores): self.scores = scores

class RadixTree:
    def __init__(self): self.held = {}

    def apply_event(self, worker_id, kv_cache_event_bytes):
        event = json.loads(kv_cache_event_bytes)["data"]["stored"]
        assert event["parent_hash"] is None
        path = ()
        for block in event["blocks"]:
            path += (block["tokens_hash"],)
            self.held.setdefault(hash(path), set()).add(worker_id)

    def find_matches(self, sequence):
        found, path = {}, ()
        for depth, tokens in enumerate(sequence, 1):
            path += (tokens,)
            for worker in self.held.get(hash(path), ()):
                found[worker, 0] = depth
        return Scores({who: depth - (LESS if who == (7, 0) else 0) for who, depth in found.items()})

def compute_block_hash_for_seq(tokens, block):
    return [hash(tuple(tokens[at : at + block])) for at in range(0, len(tokens) - block + 1, block)]
"""


def installed(peers: Path, less: int = 0) -> Path:
    """An environment in which a library in Python stands for Dynamo's; it tells of `less` for worker 7."""
    packages = peers / "dynamo/lib/python3.11/site-packages"
    (packages / "dynamo/llm").mkdir(parents=True)
    (packages / "dynamo/llm/__init__.py").write_text(f"LESS = {less}\n{LIBRARY}")
    about = packages / "ai_dynamo_runtime-9.9.dist-info/METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: ai-dynamo-runtime\nVersion: 9.9\n")
    python = peers / "dynamo/bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return peers


def test_where_each_workers_match_ends() -> None:
    asked = scenario(Random(2))
    index = index_of(asked, 1, Random(2))
    root = root_key(CacheScope("m"))
    for prompt in (asked.chat, asked.hard):
        found = index.match(block_keys(root, pack_tokens(prompt.tokens)), 0.0)
        assert found == {WorkerId(f"http://10.0.0.{n}:8000"): prompt.depths[n] for n in range(64)}
    assert (asked.chat.depths[40], asked.chat.depths[8], asked.chat.depths[9]) == (480, 333, 167)
    assert len(set(asked.hard.depths)) == 60


def test_a_tree_is_asked_what_our_index_is(tmp_path: Path) -> None:
    rows = dynamo(installed(tmp_path), others=1, batch_s=0.0)
    assert [step for step, *_ in rows] == [
        "Dynamo 9.9: hash and match of a chat's next turn, of a list of tokens",
        "Dynamo 9.9: the same where each worker's match ends elsewhere, of a list",
        "Dynamo 9.9: what its binding takes of either to read the list",
        "such a list made our array, a part of tokenising",
    ]
    assert all(unit == "µs" and 0 < p50 <= p99 for _, unit, p50, p99 in rows)


def test_other_matches_are_an_error(tmp_path: Path) -> None:
    """All hold a third of the first prompt, 167 blocks."""
    with pytest.raises(RuntimeError) as raised:
        dynamo(installed(tmp_path, less=2), others=0, batch_s=0.0)
    assert str(raised.value) == (
        "Dynamo's RadixTree: 1 workers' matches are not ours, as worker 7's of 165 blocks (167)"
    )


def test_what_it_says_when_it_fails_is_told(tmp_path: Path) -> None:
    peers = installed(tmp_path)
    (tmp_path / "dynamo/lib/python3.11/site-packages/dynamo/llm/__init__.py").write_text("raise OSError(7)")
    with pytest.raises(RuntimeError, match=r"^Dynamo's RadixTree ended with 1: [\s\S]*OSError: 7$"):
        dynamo(peers, others=0, batch_s=0.0)


def test_without_it_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotHere):
        dynamo(tmp_path)
    monkeypatch.setattr(micro, "PEERS", tmp_path)
    assert micro.main(["--only", "dynamo"]) == 0
    assert "make bench-peers" in capsys.readouterr().out


def test_a_run_with_a_wrong_match_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(micro, "PEERS", installed(tmp_path, less=1))
    monkeypatch.setattr(matching, "OTHERS", 0)
    monkeypatch.setattr(timing, "BATCH_S", 0.0)
    assert micro.main(["--only", "dynamo"]) == 1
    assert "1 workers' matches are not ours" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({1: 5, 2: 7}, ""),
        ({1: 5, 2: 7, 3: 0}, ""),
        ({1: 5}, "1 workers' matches are not ours, as worker 2's of 0 blocks (7)"),
        ({1: 6, 2: 7, 3: 1}, "2 workers' matches are not ours, as worker 1's of 6 blocks (5)"),
    ],
)
def test_matches_are_compared_worker_by_worker(theirs: dict[int, int], said: str) -> None:
    assert differing({1: 5, 2: 7}, theirs) == said


def test_an_event_as_its_engines_send_it() -> None:
    assert stored(3, [(10, 20), (11, 21)]) == (
        b'{"event_id": 3, "data": {"stored": {"parent_hash": null, "blocks": '
        b'[{"block_hash": 10, "tokens_hash": 20}, {"block_hash": 11, "tokens_hash": 21}]}}}'
    )


def test_both_ratios_stand_beside_the_targets() -> None:
    rows = {
        NEXT_TURN: 90.0,
        HARDEST: 120.0,
        f"Dynamo 9.9: {PEER_NEXT_TURN}": 120.0,
        f"Dynamo 9.9: {PEER_HARDEST}": 130.0,
    }
    assert beside(rows) == []
    assert beside({**rows, f"Dynamo 9.9: {PEER_READING}": 80.0}) == [
        "| the next turn's, of Dynamo's RadixTree | none | 0.75 × as Python calls it, "
        "2.25 × without its reading of the list | |",
        "| the hardest's, of Dynamo's RadixTree | none | 0.92 × as Python calls it, "
        "2.40 × without its reading of the list | |",
    ]


def test_a_match_that_takes_no_longer_than_reading_its_list_compares_with_nothing() -> None:
    rows = {NEXT_TURN: 90.0, f"Dynamo 9.9: {PEER_NEXT_TURN}": 80.0, f"Dynamo 9.9: {PEER_READING}": 81.5}
    assert beside(rows) == [
        "| the next turn's, of Dynamo's RadixTree | none | 1.12 × as Python calls it, "
        "not measurable without its reading of the list | |"
    ]
