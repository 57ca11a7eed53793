"""What of its last block an engine with a draft model serves, against vLLM's own cache manager."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.events.ledger import Ledger
from gateway.fleet.worker import EngineInfo
from gateway.index.changes import apply_changes
from gateway.kv.codec import decode_batch
from gateway.kv.events import BlockStored, EventBatch
from gateway.routing.last_blocks import TRUSTED_AFTER
from gateway.routing.route import Outcome
from gateway.types import Usage, WorkerId

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[2] / "data" / "kv_events" / "lookahead-0.33.0.json"
RECORDED = json.loads(DATA.read_text())
PROMPTS: list[list[int]] = RECORDED[0]["prompts"]
RUNS = {run["kind"]: run for run in RECORDED[1:]}
DRAFTS = EngineInfo("m", capacity_blocks=1000, speculates="vllm")
PROMPT = list(range(1000, 1200))


class Chat:
    """One worker, its books, and what it answers."""

    def __init__(self, fleet: Any, info: EngineInfo) -> None:
        self.fleet = fleet
        self.worker: WorkerId = fleet.add("a", info)
        self.ledger = Ledger("m")

    def says(self, batch: EventBatch) -> None:
        apply_changes(self.fleet.index, self.worker, self.ledger.apply(batch))

    def stores(self, tokens: list[int], first: int, behind: list[int] | None) -> None:
        """Blocks of `tokens`, named from number `first` on, each with what is `behind` it."""
        blocks = len(tokens) // 16
        ahead = None if behind is None else tuple((token,) for token in behind)
        names = tuple(range(first, first + blocks))
        self.says(EventBatch(0.0, (BlockStored(names, None, tuple(tokens), 16, lookahead_token_ids=ahead),)))

    async def answer(self, prompt: list[int], cached: int, events: EventBatch | None = None) -> int:
        """Routes the prompt; its events come before the end of its answer. What was promised of it."""
        self.fleet.now += 10.0  # placements before are over
        route = await self.fleet.route(prompt)
        if events is not None:
            self.says(events)
        self.fleet.router.finish(route, Outcome.OK, Usage(len(prompt), 3, cached), 0.1)
        route.lease.release()
        return int(route.matched_tokens)


async def replayed(fleet: Any, kind: str, info: EngineInfo) -> tuple[list[int], list[int]]:
    """By prompt, the tokens promised and those that vLLM found in its cache."""
    chat, run = Chat(fleet, info), RUNS[kind]
    promised = []
    for prompt, cached, payload in zip(PROMPTS, run["cached"], run["events"], strict=True):
        batch = decode_batch(base64.b64decode(payload))
        assert (batch.malformed, batch.ignored) == (0, 0)
        promised.append(await chat.answer(prompt, cached, batch))
    fleet.index.check_integrity()
    stats = chat.ledger.stats()
    assert (stats.waiting, stats.rejected, stats.unknown_removals) == (0, 0, 0)
    return promised, run["cached"]


@pytest.mark.parametrize("kind", ["looks ahead", "looks two ahead", "dropped"])
async def test_every_promise_is_what_vllm_finds(fleet: Any, kind: str) -> None:
    promised, found = await replayed(fleet, kind, DRAFTS)
    assert promised == found
    assert sum(found) > 2000


@pytest.mark.parametrize(("kind", "others"), [("looks ahead", 12), ("looks two ahead", 15), ("dropped", 39)])
async def test_of_40_prompts_so_many_are_served_less_than_where_all_is_kept(kind: str, others: int) -> None:
    pairs = zip(RUNS["kept"]["cached"], RUNS[kind]["cached"], strict=True)
    assert sum(kept != found for kept, found in pairs) == others


async def test_where_all_is_served_a_block_is_kept_back_until_that_is_known(fleet: Any) -> None:
    promised, found = await replayed(fleet, "kept", DRAFTS)
    short = [a - b for a, b in zip(found, promised, strict=True)]
    assert set(short) == {0, 16}
    assert sum(tokens > 0 for tokens in short) == TRUSTED_AFTER
    assert promised[-20:] == found[-20:]


async def test_one_that_does_not_draft_is_promised_all(fleet: Any) -> None:
    promised, found = await replayed(fleet, "kept", EngineInfo("m", capacity_blocks=1000))
    assert promised == found


async def test_a_block_serves_those_that_go_on_like_the_one_that_left_it(fleet: Any) -> None:
    chat = Chat(fleet, DRAFTS)
    chat.stores(PROMPT[:32], 1, [PROMPT[16], PROMPT[32]])
    assert await chat.answer(PROMPT[:40], 32) == 32
    assert await chat.answer(PROMPT[:32] + [5] * 8, 16) == 16
    chat.stores(PROMPT[:32], 11, [PROMPT[16], 5])  # now also for these
    assert await chat.answer(PROMPT[:32] + [5] * 8, 32) == 32
    assert await chat.answer(PROMPT[:33], 32) == 32
    assert await chat.answer(PROMPT[:32], 16) == 16  # its last token is always computed


async def test_sglang_looks_no_farther_than_to_the_token_before_the_last(fleet: Any) -> None:
    chat = Chat(fleet, EngineInfo("m", capacity_blocks=1000, speculates="sglang"))
    chat.stores(PROMPT[:32], 1, [PROMPT[16], PROMPT[32]])
    assert await chat.answer(PROMPT[:33], 16) == 16
    assert await chat.answer(PROMPT[:34], 32) == 32


async def test_a_promise_on_trust_that_fails_refutes_nothing_and_ends_the_trust(fleet: Any) -> None:
    chat = Chat(fleet, DRAFTS)
    chat.stores(PROMPT[:192], 1, None)
    assert [await chat.answer(PROMPT, 192) for _ in range(TRUSTED_AFTER + 1)] == [176] * TRUSTED_AFTER + [192]
    assert await chat.answer(PROMPT, 176) == 192
    assert await chat.answer(PROMPT, 192) == 176
    # more than a block is another matter
    assert await chat.answer(PROMPT, 80) == 176
    assert await chat.answer(PROMPT, 64) == 64


async def test_ends_are_no_blocks_where_blocks_are_counted(fleet: Any) -> None:
    chat = Chat(fleet, DRAFTS)
    chat.stores(PROMPT[:192], 1, [*PROMPT[16:192:16], PROMPT[192]])
    assert fleet.index.count(chat.worker) == 24
    assert await chat.answer(PROMPT, 192) == 192
    fleet.now += 10.0
    await fleet.route(PROMPT)
    assert fleet.board.add(chat.worker).cached_blocks == 12
