"""Images and sounds: nothing behind them is promised, and the next turn goes where they were prefilled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.prompt.base import Endpoint, PromptRequest
from gateway.routing.media import MediaMemory, likely_tokens, media_marks
from gateway.types import BlockKey, WorkerId
from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

A, B, C = WorkerId("http://a:1"), WorkerId("http://b:1"), WorkerId("http://c:1")
ROOT = BlockKey(7)
TOKENIZER = str(Path(__file__).parents[2] / "data" / "tokenizers" / "vllm-tiny")


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}


def said(*parts: Any, role: str = "user") -> dict[str, Any]:
    texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": role, "content": texts}


def marks(*messages: Mapping[str, Any], root: BlockKey = ROOT, **args: Any) -> tuple[int, ...]:
    return media_marks(PromptRequest(Endpoint.CHAT, "m", messages=messages, template_args=args), root)


def test_a_mark_names_a_medium_and_all_before_it() -> None:
    one, two = image("one"), image("two")
    first = marks(said("look", one))
    assert len(first) == 1
    answer = {"role": "assistant", "content": "a cat"}
    # the next turns begin with it
    assert marks(said("look", one), answer, said("sure?")) == first
    longer = marks(said("look", one), answer, said(two, "and this?"))
    assert (len(longer), longer[0]) == (2, first[0])
    # what stands behind the medium in its own message changes nothing, what stands before it does
    assert marks(said("look", one, "closely")) == first
    others = [
        marks(said("see", one)),
        marks(said("look", two)),
        marks(said(one)),
        marks({"role": "system", "content": "be kind"}, said("look", one)),
        marks(said("look", one), root=BlockKey(8)),
        marks(said("look", one), tools=[{"type": "function"}]),
    ]
    assert len({first, *others}) == 7


def test_what_has_no_marks() -> None:
    assert marks(said("only text"), {"role": "user", "content": "more"}) == ()
    assert media_marks(PromptRequest(Endpoint.COMPLETIONS, "m", prompts=["a"]), ROOT) == ()
    assert marks(said("half a pair \ud800", image("one"))) == ()  # nothing could hash it


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_longest_known_beginning_counts_for_a_while() -> None:
    clock = Clock()
    memory = MediaMemory(clock, kept_s=100.0, most=2)
    memory.learn((1,), A, 500)
    memory.learn((1, 2), B, 900)
    assert memory.holders((1, 2, 3)) == {B: 900}
    assert memory.holders((1, 9)) == {A: 500}
    assert memory.holders((9,)) == memory.holders(()) == {}
    clock.now = 60.0
    memory.learn((1,), B, 510)
    assert memory.holders((1,)) == {A: 500, B: 510}
    clock.now = 100.0
    assert memory.holders((1, 2)) == {B: 510}
    memory.learn((4,), A, 1)
    memory.learn((5,), A, 1)
    assert len(memory) == 2
    assert [memory.size(marks, 70) for marks in ((), (9,), (9, 8), (4,))] == [70, 570, 1070, 570]
    memory.learn((4,), A, 400)
    assert memory.size((4,), 70) == 400
    memory.learn((), A, 1)
    assert len(memory) == 2


def test_holders_get_what_they_hold_and_strangers_one_block_at_one_of_them() -> None:
    assert likely_tokens((1,), {B: 900}, (A, B), (32, 16), 16) == [32, 900]
    assert likely_tokens((1,), {B: 900}, (A, B), (32, 1600), 16) == [32, 1600]
    assert likely_tokens((), {}, (A, B), (32, 16), 16) == [32, 16]
    # nobody is known, or who is can't take it: the same one for everybody, in any order and company
    spread = {}
    for mark in range(50):
        got = dict(zip((A, B, C), likely_tokens((mark,), {}, (A, B, C), (0, 0, 0), 16), strict=True))
        assert sorted(got.values()) == [0, 0, 16]
        (spread[mark],) = (worker for worker, tokens in got.items() if tokens)
        turned = likely_tokens((mark,), {WorkerId("gone"): 9}, (C, A, B), (0, 0, 0), 16)
        assert dict(zip((C, A, B), turned, strict=True)) == got
    assert min(list(spread.values()).count(worker) for worker in (A, B, C)) >= 5


# -- the whole gateway --------------------------------------------------------------------------------------

USAGE = b'{"choices":[],"usage":{"prompt_tokens":2000,"completion_tokens":3}}'


async def turn(gateway: Whole, messages: list[dict[str, Any]]) -> tuple[str, int]:
    """(worker, promised tokens)."""
    async with http() as client:
        answer = await client.post(
            gateway.url + "/v1/chat/completions", json={"model": "m", "messages": messages}
        )
    assert answer.status_code == 200
    return answer.headers["x-gateway-worker"], int(answer.headers["x-gateway-matched-tokens"])


@pytest.mark.parametrize("source", [TOKENIZER, "engine", "bytes"], ids=["local", "engine", "bytes"])
async def test_a_chat_about_an_image_stays_where_the_image_is(source: str) -> None:
    named = {"tokenizers": {"m": source}, "tokenize_timeout": 5.0}
    async with (
        FaultyEngine(answers(USAGE), model="m") as one,
        FaultyEngine(answers(USAGE), model="m") as two,
        FaultyEngine(answers(USAGE), model="m") as three,
        whole(one.url, two.url, three.url, **named) as gateway,
    ):
        homes = []
        for chat in range(12):
            messages = [said(image(f"number{chat}" * 50), "what is it?")]
            places = []
            for _ in range(4):
                worker, promised = await turn(gateway, messages)
                places.append(worker)
                if source != "bytes":  # there, a prompt's bytes stand for its tokens, an image's too
                    assert promised == 0
                messages += [{"role": "assistant", "content": "a cat"}, said("are you sure?")]
            assert len(set(places)) == 1, places
            homes.append(places[0])
        # bytes begin alike with each image, so all of them may meet
        assert len(set(homes)) > 1 or source == "bytes"


async def test_replicas_that_know_nothing_of_each_other_agree() -> None:
    named = {"tokenizers": {"m": TOKENIZER}}
    async with (
        FaultyEngine(answers(USAGE), model="m") as one,
        FaultyEngine(answers(USAGE), model="m") as two,
        whole(one.url, two.url, **named) as here,
        whole(two.url, one.url, **named) as there,
    ):
        homes = set()
        for chat in range(16):
            messages = [said(image(f"number{chat}"), "what is it?")]
            home, _ = await turn(here, messages)
            messages += [{"role": "assistant", "content": "a cat"}, said("are you sure?")]
            assert (await turn(there, messages))[0] == home
            homes.add(home)
        assert len(homes) == 2
