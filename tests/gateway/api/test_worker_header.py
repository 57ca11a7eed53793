"""Which worker answered: told, unless clients are not to know where workers are."""

from __future__ import annotations

import pytest

from gateway.settings import Settings
from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GOOD = answers(b'{"choices":[]}')
ENDS = [GOOD, answers(b'{"error":{}}', 400), answers(b"oh", 500), answers(b"", 503)]


async def asked(gateway: Whole, times: int) -> list[tuple[int, dict[str, str], str]]:
    async with http() as client:
        answered = [await client.post(gateway.url + "/v1/chat/completions", json=CHAT) for _ in range(times)]
    return [(one.status_code, dict(one.headers), one.text) for one in answered]


async def test_an_answer_and_an_engine_s_own_error_tell_which_worker_it_was() -> None:
    async with FaultyEngine(*ENDS[:3], model="m") as engine, whole(engine.url) as gateway:
        told = await asked(gateway, 3)
        assert [(status, headers["x-gateway-worker"]) for status, headers, _ in told] == [
            (200, engine.url), (400, engine.url), (500, engine.url),
        ]  # fmt: skip


async def test_where_it_is_left_out_nothing_tells_where_a_worker_is() -> None:
    async with FaultyEngine(*ENDS, model="m") as engine, whole(engine.url, worker_header=False) as gateway:
        told = await asked(gateway, 4)
        assert [status for status, _, _ in told] == [200, 400, 500, 503]
        address = engine.url.removeprefix("http://")
        for _, headers, text in told:
            assert headers["x-request-id"]
            assert address not in str(headers) + text
        assert told[0][1]["x-gateway-matched-tokens"] == "0"


async def test_a_reload_takes_it_up() -> None:
    async with FaultyEngine(GOOD, model="m") as engine, whole(engine.url) as gateway:
        before = gateway.app.reloader.settings
        gateway.app.reloader.reload(Settings.model_validate(before.model_dump() | {"worker_header": False}))
        ((_, headers, _),) = await asked(gateway, 1)
        assert "x-gateway-worker" not in headers


async def test_every_answer_has_a_request_id_and_only_a_worker_s_tells_of_a_worker() -> None:
    async with FaultyEngine(GOOD, model="m") as engine, whole(engine.url) as gateway, http() as client:
        for method, path in (
            ("GET", "/v1/models"), ("GET", "/health"), ("GET", "/ready"), ("GET", "/nowhere"),
            ("DELETE", "/v1/models"), ("POST", "/v1/chat/completions"), ("OPTIONS", "/v1/chat/completions"),
        ):  # fmt: skip
            answer = await client.request(method, gateway.url + path)
            assert answer.headers["x-request-id"], path
            assert not [name for name in answer.headers if name.startswith("x-gateway")], path
