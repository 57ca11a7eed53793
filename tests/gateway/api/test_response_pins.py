"""What an engine keeps of a response is found again: the next turn goes to the worker that gave the last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.api.response_pins import Pin, ResponsePins
from gateway.auth.hashing import sha256_of
from gateway.errors import NotFound, StoreError
from gateway.types import WorkerId
from tests.faults import SSE_HEAD, FaultyEngine, Turn, answers, chunk, control, raw
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole
from tests.servers import Server, standalone

pytestmark = pytest.mark.anyio

PATH = "/v1/responses"
USAGE = {"input_tokens": 20, "output_tokens": 2, "total_tokens": 22}
W = WorkerId("http://a:1")


class Keeping:
    """An engine that keeps its responses, as vLLM does with VLLM_ENABLE_RESPONSES_API_STORE=1."""

    def __init__(self, name: str, model: str = "m") -> None:
        self.name = name
        self.kept: dict[str, dict[str, Any]] = {}
        self._numbers = count()
        self._model = model
        self.engine = FaultyEngine(self._answer)

    async def _answer(self, turn: Turn) -> None:
        path = turn.seen.target.partition("?")[0]
        if path == PATH:
            await self._create(turn)
        elif path.startswith(PATH):
            await answers(*self._found(path.split("/")[3]))(turn)
        else:
            await control(turn.seen, self._model)(turn)

    def _found(self, name: str) -> tuple[bytes, int]:
        if name in self.kept:
            return json.dumps(self.kept[name]).encode(), 200
        error = {"message": f"Response with id '{name}' not found.", "type": self.name, "code": 404}
        return json.dumps({"error": error}).encode(), 404

    async def _create(self, turn: Turn) -> None:
        asked = turn.seen.json()
        before = asked.get("previous_response_id")
        if before is not None and before not in self.kept:
            await answers(*self._found(str(before)))(turn)
            return
        name = str(asked.get("request_id") or f"resp_{self.name}{next(self._numbers)}")
        response = {
            "id": name, "object": "response", "created_at": 1, "status": "completed", "model": "m",
            "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "previous_response_id": before, "usage": USAGE,
        }  # fmt: skip
        if asked.get("store") is not False:
            self.kept[name] = response
        if not asked.get("stream"):
            await answers(json.dumps(response).encode())(turn)
            return
        events = [
            f"event: {kind}\ndata: {json.dumps({'type': kind, 'response': response})}\n\n".encode()
            for kind in ("response.created", "response.completed")
        ]
        await raw(SSE_HEAD, *map(chunk, events), b"0\r\n\r\n", then="keep")(turn)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with standalone(tmp_path / "valkey") as server:
        yield server


async def ask(gateway: Whole, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with http() as client:
        body = {"model": "m", "input": "hi", **fields}
        return await client.post(gateway.url + PATH, json=body, headers=headers)


async def read(gateway: Whole, name: str, key: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with http() as client:
        return await client.get(f"{gateway.url}{PATH}/{name}", headers=headers)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_clients_conversations_stay_where_they_are(stream: bool) -> None:
    one, two = Keeping("one"), Keeping("two")
    async with one.engine, two.engine, whole(one.engine.url, two.engine.url) as gateway, http() as plain:
        client = openai.AsyncOpenAI(
            base_url=gateway.url + "/v1", api_key="k", max_retries=0, http_client=plain
        )

        async def turn(before: str | None) -> str:
            more: dict[str, Any] = {} if before is None else {"previous_response_id": before}
            if not stream:
                return str((await client.responses.create(model="m", input="hi", **more)).id)
            events = await client.responses.create(model="m", input="hi", stream=True, **more)
            ended = [event async for event in events if event.type == "response.completed"]
            return str(ended[0].response.id)

        for _ in range(6):
            name = await turn(None)
            for _ in range(3):
                name = await turn(name)
            assert (await client.responses.retrieve(name)).id == name
            assert (await client.responses.cancel(name)).id == name
        # six conversations of four turns; both engines have some
        assert len(one.kept) + len(two.kept) == 24
        assert min(len(one.kept), len(two.kept)) >= 4


async def test_a_worker_that_left_takes_its_responses_along() -> None:
    """Then the engine that is asked says so, in its own words."""
    one, two = Keeping("one"), Keeping("two")
    async with one.engine, two.engine, whole(one.engine.url, two.engine.url) as gateway:
        first = await ask(gateway)
        home = first.headers["x-gateway-worker"]
        gateway.app.registry.remove(WorkerId(home))
        left = "two" if home == one.engine.url else "one"
        name = first.json()["id"]
        for answer in (await ask(gateway, previous_response_id=name), await read(gateway, name)):
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, left)


async def test_a_worker_that_is_down_may_come_back() -> None:
    """Another one could only say that it does not know it."""
    one, two = Keeping("one"), Keeping("two")
    async with one.engine, two.engine, whole(one.engine.url, two.engine.url) as gateway:
        first = await ask(gateway)
        home = WorkerId(first.headers["x-gateway-worker"])
        gateway.app.registry.withhold(home, "away")
        answer = await ask(gateway, previous_response_id=first.json()["id"])
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "unhealthy: away" in answer.json()["error"]["message"]
        assert (await ask(gateway)).status_code == 200


async def test_every_replica_finds_it(server: Server) -> None:
    one, two = Keeping("one"), Keeping("two")
    async with (
        one.engine,
        two.engine,
        whole(one.engine.url, two.engine.url, redis_url=server.url) as here,
    ):
        names = [(await ask(here)).json()["id"] for _ in range(6)]
        async with whole(one.engine.url, two.engine.url, redis_url=server.url) as there:
            for name in names:
                assert (await ask(there, previous_response_id=name)).status_code == 200
                assert (await read(there, name)).json()["id"] == name
        with server.client() as redis:
            key = "pgw:response:" + names[0]
            pin = json.loads(redis.get(key))  # type: ignore[arg-type]
            assert pin == [(one if "one" in names[0] else two).engine.url, "m", ""]
            assert 0 < redis.pttl(key) <= 3_600_000  # type: ignore[operator]


async def test_of_several_models_the_one_that_gave_it_is_asked() -> None:
    one, two = Keeping("one", "m"), Keeping("two", "other")
    names = {"tokenizers": {"m": "bytes", "other": "bytes"}, "aliases": {"nick": "m"}}
    async with one.engine, two.engine, whole(one.engine.url, two.engine.url, **names) as gateway:
        for model in ("other", "m", "nick"):
            name = (await ask(gateway, model=model)).json()["id"]
            assert (await read(gateway, name)).json()["id"] == name
        unknown = await read(gateway, "resp_x")
        assert unknown.status_code == 404
        assert unknown.json()["error"]["message"] == "Response with id 'resp_x' not found."


async def test_responses_of_another_key_are_not_there(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    entries = [{"id": name, "hash": sha256_of(f"pgw_{name}"), "models": ["m"]} for name in ("ours", "theirs")]
    keys.write_text(json.dumps({"keys": entries}))
    one = Keeping("one")
    async with one.engine, whole(one.engine.url, api_keys_file=keys) as gateway:
        name = (await ask(gateway, "pgw_ours", request_id="resp_chosen")).json()["id"]
        assert name == "resp_chosen"
        assert (await read(gateway, name, "pgw_ours")).status_code == 200
        # an engine lets clients choose names: theirs does not take ours over
        assert (await ask(gateway, "pgw_theirs", request_id=name)).status_code == 200
        seen = len(one.engine.seen)
        for answer in (
            await read(gateway, name, "pgw_theirs"),
            await ask(gateway, "pgw_theirs", previous_response_id=name),
        ):
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == "Response with id 'resp_chosen' not found."
        assert len(one.engine.seen) == seen
        assert (await read(gateway, name, "pgw_ours")).status_code == 200


class Clocked:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Away:
    async def put(self, name: str, pin: Pin) -> None:
        raise StoreError("away")

    async def get(self, name: str) -> Pin | None:
        raise StoreError("away")


async def test_pins_run_out_and_are_bounded() -> None:
    clock = Clocked()
    pins = ResponsePins(clock, Away(), kept_s=100.0, most=2)
    for n in range(3):
        pins._answered(b'data: {"response": {"id": "resp_%d", "id": "no"}}' % n, Pin(W, "m", ""))
    assert len(pins) == 2
    assert [await pins.find(f"resp_{n}", "") for n in range(3)] == [None, Pin(W, "m", ""), Pin(W, "m", "")]
    with pytest.raises(NotFound):
        await pins.find("resp_2", "another key")
    clock.now = 100.1
    assert await pins.find("resp_2", "another key") is None
    pins._answered(b'{"object": "nameless"}', Pin(W, "m", ""))
    assert len(pins) == 2
    await pins.close()
