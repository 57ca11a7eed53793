"""Hash and match by Dynamo's RadixTree, called by its Python binding: `benchmarks.matching` runs this in
Dynamo's own environment, which has nothing else of ours. A job is read as JSON from stdin:

    block      tokens of a block
    prompts    each with its tokens, and depths: how many leading blocks each worker holds
    others     prompts of 500 blocks that each worker holds beside
    batch_s    as `timed` takes it

and the last line of stdout is {version, prompts: [{spent: [p50, p99], matches}], reading: [p50, p99]}, in
seconds and blocks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from random import Random
from typing import Any, Protocol

from benchmarks.timing import timed

OTHER_BLOCKS = 500


class Tree(Protocol):
    def apply_event(self, worker_id: int, kv_cache_event_bytes: bytes) -> None: ...

    def find_matches(self, sequence: list[int]) -> Any: ...


def stored(number: int, blocks: Sequence[tuple[int, int]]) -> bytes:
    """The event of a prompt's blocks: (its name in the engine, hash of its tokens) each."""
    made = [{"block_hash": name, "tokens_hash": tokens} for name, tokens in blocks]
    return json.dumps(
        {"event_id": number, "data": {"stored": {"parent_hash": None, "blocks": made}}}
    ).encode()


def measured(
    job: Mapping[str, Any], tree: Tree, hashed: Callable[[list[int], int], list[int]]
) -> dict[str, Any]:
    random, block, prompts = Random(3), job["block"], job["prompts"]
    for prompt in prompts:
        hashes = hashed(prompt["tokens"], block)
        blocks = [(random.getrandbits(64), tokens) for tokens in hashes]
        for worker, depth in enumerate(prompt["depths"]):
            tree.apply_event(worker, stored(0, blocks[:depth]))
    for worker in range(len(prompts[0]["depths"])):
        for number in range(job["others"]):
            # hashes are as good as random, as ours are in its index
            made = [(random.getrandbits(64), random.getrandbits(64)) for _ in range(OTHER_BLOCKS)]
            tree.apply_event(worker, stored(1 + number, made))
    answers = []
    for prompt in prompts:
        tokens = prompt["tokens"]
        # its scores are left where they are, in Rust: to read them out would be more than its router does
        spent = timed(
            lambda tokens=tokens: tree.find_matches(hashed(tokens, block)),  # type: ignore[misc]
            batch_s=job["batch_s"],
        )
        scores = tree.find_matches(hashed(tokens, block)).scores
        answers.append(
            {"spent": spent, "matches": {worker: found for (worker, _rank), found in scores.items()}}
        )
    # in blocks longer than the prompt there is nothing to hash
    tokens = prompts[0]["tokens"]
    reading = timed(lambda: hashed(tokens, len(tokens) + 1), batch_s=job["batch_s"])
    return {"prompts": answers, "reading": reading}


def main() -> None:
    from dynamo.llm import RadixTree, compute_block_hash_for_seq

    answer = measured(json.load(sys.stdin), RadixTree(), compute_block_hash_for_seq)
    print(json.dumps({"version": version("ai-dynamo-runtime"), **answer}))


if __name__ == "__main__":
    main()
