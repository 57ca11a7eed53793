"""Commands that ask a running gateway: what they say of one that refuses, and of who is none."""

from __future__ import annotations

import asyncio

import pytest

from gateway.cli.admin import ask
from gateway.errors import ConfigError, UpstreamConnectError
from tests.faults import FaultyEngine, Script, answers

pytestmark = pytest.mark.anyio


async def asked(script: Script) -> tuple[dict[str, object], str, list[str]]:
    async with FaultyEngine(script) as server:
        answer = await asyncio.to_thread(
            ask, "POST", server.url + "/", "/admin/x", "t0ken", timeout=10, content="{}", params={"a": "b c"}
        )
        seen = server.seen[0]
        return answer, f"{seen.method} {seen.target}", seen.header("authorization")


async def test_an_answer() -> None:
    assert await asked(answers(b'{"n": 1}')) == ({"n": 1}, "POST /admin/x?a=b+c", ["Bearer t0ken"])


async def test_a_refusal_is_told_as_it_was_said() -> None:
    with pytest.raises(ConfigError, match=r"^401: no such token$"):
        await asked(answers(b'{"error": {"message": "no such token"}}', 401))


@pytest.mark.parametrize(("body", "status"), [(b"<html>", 404), (b"ok", 200), (b"[]", 200)])
async def test_who_is_no_admin_port(body: bytes, status: int) -> None:
    with pytest.raises(ConfigError, match=r"is no gateway's admin port.*--admin-url takes another$"):
        await asked(answers(body, status))


def test_nobody_there() -> None:
    with pytest.raises(UpstreamConnectError, match=r"^no gateway at http://127.0.0.1:1 .*--admin-url"):
        ask("GET", "http://127.0.0.1:1", "/admin/x", None, timeout=10)


def test_an_address_that_is_none() -> None:
    with pytest.raises(UpstreamConnectError, match=r"--admin-url takes another"):
        ask("GET", "127.0.0.1:8081", "/admin/x", None, timeout=10)


@pytest.mark.parametrize(
    "url", ["http://gw:hunter2@127.0.0.1:1", "http://gw:hunter2/@127.0.0.1:1", "gw:hunter2@h"]
)
def test_a_password_in_the_address_is_not_repeated(url: str) -> None:
    with pytest.raises(UpstreamConnectError, match=r"^no gateway at .*…@") as failed:
        ask("GET", url, "/admin/x", None, timeout=10)
    assert "hunter2" not in failed.value.message
