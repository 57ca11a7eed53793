"""What single steps cost: keys, match, guess, events, tokens, scores. One process, one core, no sockets.

    make micro                     a table, benchmarks/results/micro.json, and a table in docs/performance.md
    python -m benchmarks.micro --only match,events --json out.json     neither of the two

Each step runs in batches of a tenth of a second or so; p50 and p99 are over the batches' means, in CPU time
of this process, so that other programs on the machine disturb little. Where `make bench-peers` has installed
Dynamo, its RadixTree matches what ours does, in its own environment, beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from textwrap import fill

from rich.console import Console
from rich.table import Table

from benchmarks import asked, matching
from benchmarks.ending import in_one_line, write
from benchmarks.matching import HARDEST, NEXT_TURN, NotHere
from benchmarks.replay.page import write_between
from benchmarks.timing import Row, timed
from benchmarks.wire.routers import PEERS, python_of
from gateway.events.ledger import Ledger
from gateway.fleet.load import WorkerLoad
from gateway.index.changes import apply_changes
from gateway.index.prefix import PrefixIndex
from gateway.kv.codec import decode_batch, encode_batch
from gateway.kv.events import BlockRemoved, BlockStored, EventBatch
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.kv.known_runs import KnownRuns
from gateway.kv.parted import PartedKeys
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.prompt.files import load_tokenizer_files
from gateway.prompt.local import LocalEncoder
from gateway.prompt.quick import quickest
from gateway.routing.choose import pick
from gateway.routing.policies.estimated_ttft import EstimatedTTFT
from gateway.routing.policy import RequestShape
from gateway.types import BlockKey, CacheScope, WorkerId

RESULTS = Path("benchmarks/results/micro.json")
TOKENIZER = Path("tests/data/tokenizers/vllm-tiny")
MANY = 1_000_000
_WORDS = "the quick brown fox jumps over the lazy dog and looks at what the engine says about it"


def prompt_of(tokens: int, random: Random) -> list[int]:
    return [random.randrange(150_000) for _ in range(tokens)]


def keys() -> Iterator[Row]:
    root, random = root_key(CacheScope("m")), Random(1)
    for tokens in (200, 8000, 128_000):
        packed = pack_tokens(prompt_of(tokens, random))
        p50, p99 = timed(lambda packed=packed: block_keys(root, packed))  # type: ignore[misc]
        yield f"keys of {tokens:,} tokens, new text", "µs", p50 * 1e6, p99 * 1e6
    known = KnownRuns()
    packed = pack_tokens(prompt_of(8000, random))
    p50, p99 = timed(lambda: known.keys(root, packed))
    yield "keys of 8,000 tokens that came before", "µs", p50 * 1e6, p99 * 1e6


def dynamo() -> Iterator[Row]:
    """The same by Dynamo's RadixTree, where it is installed."""
    yield from matching.dynamo(PEERS)


def maps() -> Iterator[Row]:
    """The longest write while all of a million keys are replaced twice, of three times."""
    random = Random(6)
    for name, of in (("one dict", dict), ("parts", PartedKeys)):
        known: dict[int, int] | PartedKeys[int] = of()
        held = deque(random.getrandbits(64) for _ in range(MANY))
        for key in held:
            known[key] = 1
        longest = sorted(_longest_write(known, held, random) for _ in range(3))
        yield f"longest write into a map of {MANY:,} blocks, {name}", "ms", longest[1] * 1e3, longest[2] * 1e3


def _longest_write(known: dict[int, int] | PartedKeys[int], held: deque[int], random: Random) -> float:
    """CPU seconds."""
    longest, clock = 0.0, time.thread_time
    for _ in range(2 * len(held)):
        key, gone = random.getrandbits(64), held.popleft()
        held.append(key)
        began = clock()
        known[key] = 1
        longest = max(longest, clock() - began)
        del known[gone]
    return longest


def guess() -> Iterator[Row]:
    """What a worker without events is believed to hold, when a prompt of 500 blocks is sent there of which it
    has 333 already. Its cache is full, so that as much leaves as comes."""
    random = Random(5)
    index, worker = PrefixIndex(), WorkerId("http://10.0.0.1:8000")
    index.add_worker(worker, capacity=50_000)
    beginnings = [[BlockKey(random.getrandbits(64)) for _ in range(333)] for _ in range(8)]
    made = (
        [*beginnings[n % 8], *(BlockKey(random.getrandbits(64)) for _ in range(167))]
        for n in range(1_000_000)
    )
    for keys in islice(made, 400):
        index.place(worker, keys, 0.0)
    prompts = iter(list(islice(made, 20_000)))
    p50, p99 = timed(lambda: index.place(worker, next(prompts), 0.0))
    yield (
        "a prompt of 8,000 tokens sent to an engine without events, a third of it new",
        "µs",
        p50 * 1e6,
        p99 * 1e6,
    )


def promises() -> Iterator[Row]:
    """Prompts of 500 blocks for a worker with events, all new, 40 a second, so that 200 promises live; and
    the match of a sibling of the latest."""
    random = Random(8)
    index, worker = PrefixIndex(), WorkerId("http://10.0.0.1:8000")
    index.add_worker(worker)
    prompts = cycle([[BlockKey(random.getrandbits(64)) for _ in range(500)] for _ in range(1000)])
    moments = count(1)
    for _ in range(400):
        index.place(worker, next(prompts), next(moments) / 40)
    p50, p99 = timed(lambda: index.place(worker, next(prompts), next(moments) / 40))
    yield "a promise of 8,000 tokens, where another ends", "µs", p50 * 1e6, p99 * 1e6
    now, sibling = next(moments) / 40, next(prompts)
    index.place(worker, sibling, now)
    p50, p99 = timed(lambda: index.match(sibling, now))
    yield "the match of its sibling", "µs", p50 * 1e6, p99 * 1e6


def events() -> Iterator[Row]:
    """As vLLM publishes them: a prompt of 32 blocks is stored in one event, and later given up from its end,
    an event a block."""
    random = Random(3)
    names = [tuple(random.randrange(1 << 63) for _ in range(32)) for _ in range(400)]
    payloads = [
        encode_batch(EventBatch(0.0, (BlockStored(n, None, tuple(prompt_of(512, random)), 16),)))
        for n in names
    ]
    freed = [tuple(BlockRemoved((block,)) for block in reversed(n)) for n in names]
    payloads += [encode_batch(EventBatch(0.0, blocks)) for blocks in freed]
    worker = WorkerId("w")

    def run() -> None:
        index, ledger = PrefixIndex(), Ledger("m")
        index.add_worker(worker)
        for payload in payloads:
            apply_changes(index, worker, ledger.apply(decode_batch(payload)))

    p50, p99 = timed(run, batches=10, units=400 * 32)
    yield "event: one block stored and removed, bytes to index", "µs", p50 * 1e6, p99 * 1e6
    yield _EVENTS, "1/s", 1 / p50, 1 / p99


def tokens() -> Iterator[Row]:
    files = load_tokenizer_files(TOKENIZER)
    encoder, cold = LocalEncoder(files), LocalEncoder(files, cache_bytes=0)
    alone = LocalEncoder(files, cache_bytes=0, library=quickest(files.tokenizer, None))
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "the",
        "lazy",
        "dog",
        "and",
        "looks",
        "at",
        "what",
        "the",
        "engine",
        "says",
        "about",
        "it",
    ]
    random = Random(4)

    def text(count: int) -> str:
        return " ".join(random.choice(words) for _ in range(count))

    def chat(messages: list[dict[str, str]]) -> PromptRequest:
        return PromptRequest(Endpoint.CHAT, "m", messages)

    for size in (200, 8000):
        made = [chat([{"role": "user", "content": text(size * 3 // 4)}]) for _ in range(400)]
        fresh = cycle(made)
        p50, p99 = timed(lambda fresh=fresh: cold.tokenise(next(fresh)), batches=8)  # type: ignore[misc]
        yield f"tokenise a chat of about {size:,} tokens, new text", "µs", p50 * 1e6, p99 * 1e6
        p50, p99 = timed(lambda fresh=fresh: alone.tokenise(next(fresh)), batches=8)  # type: ignore[misc]
        yield f"the same by Hugging Face's library, {size:,} tokens", "µs", p50 * 1e6, p99 * 1e6
        turns = [
            {"role": "user" if n % 2 == 0 else "assistant", "content": text(size // 13)} for n in range(15)
        ]
        encoder.tokenise(chat(turns))

        def step(turns: list[dict[str, str]] = turns, size: int = size) -> None:
            encoder.tokenise(chat([*turns, {"role": "user", "content": text(10)}]))

        p50, p99 = timed(step, batches=8)
        yield f"tokenise its next turn, {size:,} tokens before", "µs", p50 * 1e6, p99 * 1e6


def scores() -> Iterator[Row]:
    policy, random = EstimatedTTFT(), Random(5)
    for size in (4, 64, 512):
        loads = [
            WorkerLoad(
                WorkerId(str(n)), requests=random.randrange(20), waiting_tokens=random.randrange(8000),
                context_tokens=random.randrange(50_000), capacity_blocks=30_000, capacity_tokens=480_000,
            )
            for n in range(size)
        ]  # fmt: skip
        matched = [random.choice((0, 0, 512, 4096)) for _ in loads]
        shape = RequestShape(8000, keys=[BlockKey(n) for n in range(500)])
        p50, p99 = timed(lambda a=(shape, loads, matched): pick(policy.score(*a), a[1], a[2], random))  # type: ignore[misc]
        yield f"score and pick among {size} workers", "µs", p50 * 1e6, p99 * 1e6


_EVENTS = "the same, as blocks a second"
_WHOLE = "the same by Hugging Face's library, 8,000 tokens"
_NEXT = "tokenise its next turn, 8,000 tokens before"


def page(rows: Sequence[Row], told: str) -> str:
    """All steps, then those that have a target."""
    lines = ["| step | p50 | p99 | |", "|---|--:|--:|---|"]
    lines += [f"| {step} | {p50:,.1f} | {p99:,.1f} | {unit} |" for step, unit, p50, p99 in rows]
    found = {step: p50 for step, _unit, p50, _p99 in rows}
    share = found[_NEXT] / found[_WHOLE]
    lines += [
        "",
        "| | target | reached | |",
        "|---|---|---|---|",
        f"| {NEXT_TURN} | 200 µs | {found[NEXT_TURN]:.0f} µs | {_kept(found[NEXT_TURN] <= 200)} |",
        f"| {HARDEST} | 200 µs | {found[HARDEST]:.0f} µs | {_kept(found[HARDEST] <= 200)} |",
        f"| events applied | 150,000 blocks/s | {found[_EVENTS]:,.0f} | {_kept(found[_EVENTS] >= 150_000)} |",
        "| next chat turn at 8,000 tokens | 0.1 × full encode, Hugging Face's | "
        f"{share:.3f} × | {_kept(share <= 0.1)} |",
        *matching.beside(found),
        "",
        fill(told, width=115),
    ]
    return "\n".join(lines)


def _kept(met: bool) -> str:
    return "kept" if met else "**missed**"


def state() -> str:
    """What it was measured on."""
    return (
        f"{time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{python_of(sys.executable)}; load average {os.getloadavg()[0]:.1f}."
    )


STEPS = {
    step.__name__: step
    for step in (keys, matching.match, dynamo, maps, guess, promises, events, tokens, scores)
}


@in_one_line()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--json", type=asked.writable, help=f"[default: {RESULTS}, of a whole run]")
    args = parser.parse_args(argv)
    try:
        wanted = set(asked.names(args.only, STEPS))
    except ValueError as error:
        parser.error(f"--only: {error}")
    out = asked.output(args.json, RESULTS, whole=wanted == set(STEPS), page=False)
    if out.result is None:
        print(asked.PART)
    console, table = Console(), Table("step", "p50", "p99", "unit")
    rows: list[Row] = []
    left_out: list[str] = []
    failed = False
    for name in STEPS:
        if name not in wanted:
            continue
        console.print(f"[dim]{name}…[/dim]")
        try:
            for row in STEPS[name]():
                rows.append(row)
                table.add_row(row[0], f"{row[2]:,.1f}", f"{row[3]:,.1f}", row[1])
        except (NotHere, RuntimeError) as error:
            left_out.append(f"{error}.")
            failed |= isinstance(error, RuntimeError)
    console.print(table)
    for line in left_out:
        console.print(line, markup=False)
    machine = {"machine": platform.machine(), "python": python_of(sys.executable)}
    document = {
        "machine": machine,
        "rows": [dict(zip(("step", "unit", "p50", "p99"), r, strict=True)) for r in rows],
    }
    if out.result is not None:
        write(out.result, json.dumps(document, indent=1) + "\n")
    if out.pages:
        write_between(Path("docs/performance.md"), {"micro": page(rows, " ".join((state(), *left_out)))})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
