"""A recorded session of real vLLM, played to our engine: the same events in the same batches and order, the
same cached tokens. Only the names of blocks differ, one to one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent
from gateway.types import CacheScope

DATA = Path(__file__).parents[2] / "data" / "vllm"


class Names:
    """Which of our hashes is which of theirs; each has one partner for ever."""

    def __init__(self) -> None:
        self._theirs: dict[Any, Any] = {}
        self._ours: dict[Any, Any] = {}

    def same(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        return len(ours) == len(theirs) and all(
            self._theirs.setdefault(a, b) == b and self._ours.setdefault(b, a) == a
            for a, b in zip(ours, theirs, strict=True)
        )


def same_event(ours: KVEvent, theirs: dict[str, Any], names: Names) -> bool:
    match ours:
        case BlockStored():
            parents = [
                [h] if h is not None else [] for h in (ours.parent_block_hash, theirs["parent_block_hash"])
            ]
            extra = [None if keys is None else list(keys) for keys in ours.extra_keys or ()]
            return (
                theirs["type"] == "BlockStored"
                and names.same(parents[0], parents[1])
                and names.same(ours.block_hashes, theirs["block_hashes"])
                and list(ours.token_ids) == theirs["token_ids"]
                and extra == theirs["extra_keys"]
                and all(
                    getattr(ours, field) == theirs[field]
                    for field in ("block_size", "lora_id", "medium", "lora_name", "group_idx")
                )
            )
        case BlockRemoved():
            return theirs["type"] == "BlockRemoved" and names.same(ours.block_hashes, theirs["block_hashes"])
        case AllBlocksCleared():
            return theirs["type"] == "AllBlocksCleared"


def assert_same(ours: Sequence[EventBatch], theirs: list[list[dict[str, Any]]], names: Names) -> None:
    assert [len(batch.events) for batch in ours] == [len(batch) for batch in theirs]
    for mine, recorded in zip(ours, theirs, strict=True):
        for event, other in zip(mine.events, recorded, strict=True):
            assert same_event(event, other, names), (event, other)


@pytest.mark.parametrize("recording", ["session_v028.json", "session_v032.json"])
def test_the_recorded_session_comes_out_the_same(make: Any, recording: str) -> None:
    steps = json.loads((DATA / recording).read_text())["steps"]
    # vLLM keeps one of its 48 blocks to itself
    h = make(num_blocks=47, max_model_len=512)
    names = Names()
    served = 0
    for number, step in enumerate(steps):
        h.batches.clear()
        if "reset" in step:
            assert h.engine.reset_prefix_cache() is step["reset"]
            continue
        requests = {f"{number}.{i}": request for i, request in enumerate(step["requests"])}
        for name, request in requests.items():
            h.runner.answers[name] = request["output"]
            h.add(
                name,
                request["prompt"],
                len(request["output"]),
                scope=CacheScope("m", salt=request.get("salt", "")),
                skip_cache_read=request.get("skip", False),
            )
            if step["name"].startswith("concurrent") and len(requests) == 3 and name.endswith(".0"):
                h.step()  # in the recording the first was under way when the others came
        if "reset_while_busy" in step:
            h.step()
            assert h.engine.reset_prefix_cache() is step["reset_while_busy"]
        h.finish()
        assert_same(h.batches, step["batches"], names)
        for name, request in requests.items():
            assert h.tokens(name) == request["output"]
            if request["cached"] is not None:
                assert h.outputs[name][-1].num_cached_tokens == request["cached"], step["name"]
            served += 1
    assert served == 31
