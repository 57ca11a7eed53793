"""Two prompts of 8,000 tokens and what 64 workers hold of them, matched by our index, and by Dynamo's
RadixTree in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import timing
from benchmarks.ratios import ratio, times
from benchmarks.timing import Row, timed
from gateway.index.prefix import PrefixIndex
from gateway.kv.keys import BLOCK_SIZE, block_keys, pack_tokens, root_key
from gateway.kv.known_runs import KnownRuns
from gateway.types import BlockKey, CacheScope, WorkerId

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 64
BLOCKS = 500
"""Of each prompt."""
OTHERS = 31
"""Prompts that each worker holds beside those that are matched: a million blocks of all."""
NEXT_TURN = "keys of 8,000 tokens, a chat's next turn, and their match, 64 workers"
HARDEST = "the same where each worker's match ends elsewhere"
PEER_NEXT_TURN = "hash and match of a chat's next turn, of a list of tokens"
PEER_HARDEST = "the same where each worker's match ends elsewhere, of a list"
PEER_READING = "what its binding takes of either to read the list"
"""Of Dynamo's rows, behind its name and version."""
READING = "such a list made our array, a part of tokenising"
_ROOT = root_key(CacheScope("m"))
_URLS = [WorkerId(f"http://10.0.0.{n}:8000") for n in range(WORKERS)]


class NotHere(Exception):
    """What has no row for want of something on this machine."""


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: list[int]
    depths: list[int]
    """Leading blocks that each worker holds."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A chat's next turn: all hold a third of it, eight two thirds, one all but its end. The hardest: all
    hold it, each a little less of it than the next."""

    chat: Prompt
    hard: Prompt


def scenario(random: Random) -> Scenario:
    made = [[random.randrange(150_000) for _ in range(BLOCKS * BLOCK_SIZE)] for _ in range(2)]
    return Scenario(
        Prompt(made[0], [480 if n == 40 else 333 if n % 8 == 0 else 167 for n in range(WORKERS)]),
        Prompt(made[1], [500 - 7 * n if n < 60 else 500 for n in range(WORKERS)]),
    )


def index_of(held: Scenario, others: int, random: Random) -> PrefixIndex:
    index = PrefixIndex()
    of_each = [(block_keys(_ROOT, pack_tokens(p.tokens)), p.depths) for p in (held.chat, held.hard)]
    for n, worker in enumerate(_URLS):
        index.add_worker(worker)
        for found, depths in of_each:
            index.store(worker, found[: depths[n]])
        for _ in range(others):
            # keys are as good as random; to draw the tokens behind them would be most of the time
            index.store(worker, [BlockKey(random.getrandbits(64)) for _ in range(BLOCKS)])
    return index


def match() -> Iterator[Row]:
    """Where 64 workers hold a million blocks."""
    random = Random(2)
    asked = scenario(random)
    index = index_of(asked, OTHERS, random)
    chat, hard = pack_tokens(asked.chat.tokens), pack_tokens(asked.hard.tokens)
    for packed, name, alone in (
        (chat, NEXT_TURN, "the match of a chat's next turn"),
        (hard, HARDEST, "the hardest match"),
    ):
        found = block_keys(_ROOT, packed)
        p50, p99 = timed(lambda packed=packed: index.match(block_keys(_ROOT, packed), 0.0))  # type: ignore[misc]
        yield name, "µs", p50 * 1e6, p99 * 1e6
        p50, p99 = timed(lambda found=found: index.match(found, 0.0))  # type: ignore[misc]
        yield alone, "µs", p50 * 1e6, p99 * 1e6
    known = KnownRuns()
    p50, p99 = timed(lambda: index.match(known.keys(_ROOT, chat), 0.0))
    yield "a chat's next turn where this gateway has seen the one before", "µs", p50 * 1e6, p99 * 1e6


def dynamo(peers: Path, *, others: int | None = None, batch_s: float | None = None) -> list[Row]:
    """The same by Dynamo's RadixTree, in its environment below `peers`, of the same blocks in all. Raises
    NotHere where that is missing, RuntimeError where it fails or its matches are not ours."""
    if not list(peers.glob("dynamo/lib/python3*/site-packages/dynamo/llm")):
        raise NotHere("Dynamo's RadixTree is not installed, so not measured (`make bench-peers` installs it)")
    asked = scenario(Random(2))
    job = {
        "block": BLOCK_SIZE,
        "prompts": [{"tokens": p.tokens, "depths": p.depths} for p in (asked.chat, asked.hard)],
        "others": OTHERS if others is None else others,
        "batch_s": timing.BATCH_S if batch_s is None else batch_s,
    }
    told = _answer(peers.absolute() / "dynamo/bin/python", job)
    index = index_of(asked, 0, Random(2))
    for prompt, theirs in zip((asked.chat, asked.hard), told["prompts"], strict=True):
        found = index.match(block_keys(_ROOT, pack_tokens(prompt.tokens)), 0.0)
        ours = {n: found[worker] for n, worker in enumerate(_URLS) if worker in found}
        if why := differing(ours, {int(n): depth for n, depth in theirs["matches"].items()}):
            raise RuntimeError(f"Dynamo's RadixTree: {why}")
    of_list = told["prompts"][0]["spent"], told["prompts"][1]["spent"], told["reading"]
    names = PEER_NEXT_TURN, PEER_HARDEST, PEER_READING
    rows = [
        (f"Dynamo {told['version']}: {name}", "µs", p50 * 1e6, p99 * 1e6)
        for name, (p50, p99) in zip(names, of_list, strict=True)
    ]
    p50, p99 = timed(lambda: pack_tokens(asked.chat.tokens), batch_s=batch_s)
    return [*rows, (READING, "µs", p50 * 1e6, p99 * 1e6)]


def _answer(python: Path, job: Mapping[str, object]) -> dict[str, Any]:
    """Raises RuntimeError with what it said last."""
    ran = subprocess.run(
        [str(python), "-m", "benchmarks.micro_dynamo"],
        input=json.dumps(job), capture_output=True, text=True, check=False,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(f"Dynamo's RadixTree ended with {ran.returncode}: {ran.stderr.strip()[-600:]}")
    answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def differing(ours: Mapping[int, int], theirs: Mapping[int, int]) -> str:
    """Whose matches, in blocks, are not the same; empty where all are."""
    unlike = [n for n in sorted({*ours, *theirs}) if ours.get(n, 0) != theirs.get(n, 0)]
    if not unlike:
        return ""
    first = unlike[0]
    return (
        f"{len(unlike)} workers' matches are not ours, as worker {first}'s of {theirs.get(first, 0)} blocks "
        f"({ours.get(first, 0)})"
    )


def beside(rows: Mapping[str, float]) -> list[str]:
    """Lines of the page: what ours takes of Dynamo's, by p50; none where that has no rows."""

    def theirs(name: str) -> float | None:
        return next((p50 for step, p50 in rows.items() if step.endswith(f": {name}")), None)

    reading, lines = theirs(PEER_READING), []
    for name, ours, peer in (
        ("the next turn's", NEXT_TURN, PEER_NEXT_TURN),
        ("the hardest's", HARDEST, PEER_HARDEST),
    ):
        whole = theirs(peer)
        if whole is None or reading is None or ours not in rows:
            continue
        called, hashed = (times(ratio(rows[ours], of), 2) for of in (whole, whole - reading))
        lines.append(
            f"| {name}, of Dynamo's RadixTree | none | {called} as Python calls it, "
            f"{hashed} without its reading of the list | |"
        )
    return lines
