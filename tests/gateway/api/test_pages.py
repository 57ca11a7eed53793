"""Pages of browsers: whose may ask, and whose may read."""

from __future__ import annotations

import httpx
import pytest

from tests.faults import SSE_HEAD, FaultyEngine, Script, answers, chunk, raw
from tests.gateway.api.rig import http, serving
from tests.gateway.api.whole import whole

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
OPENS = (
    "Access-Control-Allow-Origin: *",
    "access-control-allow-credentials: true",
    "access-control-expose-headers: *",
    "Access-Control-Whatever-Comes-Next: ?1",
    "timing-allow-origin: *",
    "cross-origin-resource-policy: cross-origin",
)
"""What vLLM says unless told otherwise (the first two), and what opens more."""
STREAM = SSE_HEAD[:-2] + "\r\n".join([*OPENS, "", ""]).encode()


def opened(answer: httpx.Response) -> list[str]:
    """Names of headers that open an answer to pages."""
    return sorted(
        name
        for name in answer.headers
        if name.startswith(("access-control-", "cross-origin-")) or name == "timing-allow-origin"
    )


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (answers(b'{"ok":true}', 200, *OPENS), 200),
        (raw(STREAM, chunk(b"data: [DONE]\n\n"), chunk(b"")), 200),
        (answers(b'{"error":{}}', 400, *OPENS), 400),
        (answers(b'{"error":{}}', 503, *OPENS), 503),
        (answers(b"RIFF", 200, *OPENS, content_type="audio/wav"), 200),
    ],
    ids=["JSON", "stream", "refused", "withheld from the client", "other bytes"],
)
@pytest.mark.parametrize("path", [PATH, "/v1/embeddings"])
async def test_what_an_engine_says_to_browsers_stays_here(script: Script, status: int, path: str) -> None:
    async with FaultyEngine(script) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + path, content=BODY, headers={"origin": "https://evil.example"})
        assert (answer.status_code, opened(answer)) == (status, [])
        assert answer.headers["x-gateway-worker"] == "w0"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_nor_does_it_leave_by_paths_that_configuration_adds(method: str) -> None:
    async with (
        FaultyEngine(answers(b"", 200, *OPENS)) as engine,
        serving(engine.url, extra_paths=("/custom",), models={"": "m"}) as door,
        http() as client,
    ):
        answer = await client.request(method, door.url + "/custom")
        assert (answer.status_code, opened(answer)) == (204 if method == "OPTIONS" else 200, [])


async def test_a_named_page_is_told_by_the_gateway_alone() -> None:
    async with (
        FaultyEngine(answers(b'{"ok":true}', 200, *OPENS), model="m") as engine,
        whole(engine.url, cors_origins=("https://a.example",)) as gateway,
        http() as client,
    ):
        named = {"origin": "https://a.example", "sec-fetch-site": "cross-site"}
        answer = await client.post(gateway.url + PATH, content=BODY, headers=named)
        assert (answer.status_code, answer.json()) == (200, {"ok": True})
        assert answer.headers.get_list("access-control-allow-origin") == ["https://a.example"]
        assert opened(answer) == ["access-control-allow-origin", "access-control-expose-headers"]
        assert "*" not in answer.headers["access-control-expose-headers"]
        other = {"origin": "https://b.example", "sec-fetch-site": "cross-site"}
        answer = await client.post(gateway.url + PATH, content=BODY, headers=other)
        assert (answer.status_code, opened(answer)) == (403, ["access-control-expose-headers"])
        assert len(engine.seen) == 1


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_page_that_is_not_named_costs_nothing(site: str, origin: str) -> None:
    """A POST of text/plain is one that browsers send unasked."""
    headers = {"origin": origin, "sec-fetch-site": site, "content-type": "text/plain"}
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, content=BODY, headers=headers)
        assert (answer.status_code, opened(answer)) == (403, [])
        error = answer.json()["error"]
        assert error["type"] == "permission_error"
        assert error["message"] == f"pages of {origin!r} may not ask here; cors_origins names those that may"
        assert (await door.records.next()).status == 403
        for method, path in (("GET", "/v1/models"), ("OPTIONS", PATH), ("GET", "/nope")):
            answer = await client.request(method, door.url + path, headers=headers)
            assert (answer.status_code, opened(answer)) == (403, [])
        assert (engine.seen, door.router.asked) == ([], [])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://gateway.example", "sec-fetch-site": "same-origin"},
        {"origin": "https://an-app-that-is-no-browser.example"},
        {"sec-fetch-site": "none"},
    ],
)
async def test_everybody_else_sees_no_change(headers: dict[str, str]) -> None:
    async with FaultyEngine(answers(b'{"ok":true}')) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, content=BODY, headers=headers)
        assert (answer.status_code, answer.content, opened(answer)) == (200, b'{"ok":true}', [])
        assert (await client.get(door.url + "/v1/models", headers=headers)).status_code == 200


async def test_a_gateway_for_everybody_s_pages() -> None:
    async with (
        FaultyEngine(answers(), model="m") as engine,
        whole(engine.url, cors_origins=("*",)) as gateway,
        http() as client,
    ):
        headers = {"origin": "https://any.example", "sec-fetch-site": "cross-site"}
        answer = await client.post(gateway.url + PATH, content=BODY, headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize("origins", [("https://a.example",), ("*",)])
async def test_caches_are_told_that_pages_get_another_answer(origins: tuple[str, ...]) -> None:
    """Also where no page asked: a cache may keep that answer and give it to one."""
    async with (
        FaultyEngine(answers(b'{"ok":true}', 200, "vary: accept-encoding"), model="m") as engine,
        whole(engine.url, cors_origins=origins) as gateway,
        http() as client,
    ):
        for headers in ({}, {"origin": "https://b.example"}):
            answer = await client.post(gateway.url + PATH, content=BODY, headers=headers)
            assert answer.status_code == 200
            assert sorted(", ".join(answer.headers.get_list("vary")).split(", ")) == [
                "Origin",
                "accept-encoding",
            ]
            for path in ("/v1/models", "/nope"):
                answer = await client.get(gateway.url + path, headers=headers)
                assert answer.headers.get_list("vary") == ["Origin"]


async def test_without_named_origins_nothing_varies_by_them() -> None:
    async with FaultyEngine(answers(b"{}")) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, content=BODY)
        assert (answer.status_code, answer.headers.get_list("vary")) == (200, [])
