"""The admin port's guard, around an app that says yes to everybody."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth.admin import AdminGuard, is_loopback, token_hash
from gateway.auth.hashing import sha256_of
from gateway.errors import ConfigError

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-the-operator"


async def yes(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


def client(stored: str | None, base: str = "http://127.0.0.1:8081", **more: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(AdminGuard(yes, stored, **more)), base_url=base)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (basic("operator", TOKEN), 200),
        (basic("", TOKEN), 200),
        (None, 401),
        ("", 401),
        (TOKEN, 401),
        ("Bearer ", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {sha256_of(TOKEN)}", 401),  # the hash is not the token
        ("Basic !!!", 401),
        (basic(TOKEN, ""), 401),
    ],
)
async def test_the_token_opens_and_nothing_else(authorization: str | None, status: int) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    async with client(sha256_of(TOKEN), "http://gateway.example:8081") as http:
        answer = await http.get("/admin/workers", headers=headers)
        assert answer.status_code == status
        if status == 401:
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.headers["www-authenticate"].startswith("Basic")  # a browser asks for it


async def test_what_is_open_to_probes() -> None:
    async with client(sha256_of(TOKEN)) as http:
        found = {
            p: (await http.get(p)).status_code
            for p in ("/health", "/ready", "/metrics", "/", "/docs", "/ready/")
        }
    assert found == {"/health": 200, "/ready": 200, "/metrics": 401, "/": 401, "/docs": 401, "/ready/": 401}
    async with client(sha256_of(TOKEN), open_paths=("/metrics",)) as http:
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/admin/workers")).status_code == 401


@pytest.mark.parametrize(
    ("base", "status"),
    [
        ("http://127.0.0.1:8081", 200),
        ("http://localhost:8081", 200),
        ("http://[::1]:8081", 200),
        ("http://rebound.example:8081", 403),  # a name of theirs that now points here (DNS rebinding)
        ("http://127.0.0.1.example.com", 403),
        ("http://10.0.0.5:8081", 403),
    ],
)
async def test_without_a_token_only_this_machine_by_its_own_names(base: str, status: int) -> None:
    async with client(None, base) as http:
        assert (await http.post("/admin/workers")).status_code == status


async def test_a_client_certificate_is_as_good_as_a_token() -> None:
    async with client(None, "http://gateway.example:8081", certified=True) as http:
        assert (await http.get("/admin/workers")).status_code == 200
    async with client(sha256_of(TOKEN), "http://gateway.example:8081", certified=True) as http:
        assert (await http.get("/admin/workers")).status_code == 401  # where both are asked for, both it is


@pytest.mark.parametrize("stored", [None, sha256_of(TOKEN)])
async def test_pages_of_other_sites_are_refused_even_where_a_browser_adds_the_token(
    stored: str | None,
) -> None:
    headers = {"authorization": basic("operator", TOKEN)}
    async with client(stored) as http:
        for origin, status in (
            ("http://127.0.0.1:8081", 200),
            ("https://evil.example", 403),
            ("http://127.0.0.1:9999", 403),
            ("null", 403),
        ):
            answer = await http.post("/admin/workers", headers={**headers, "origin": origin})
            assert answer.status_code == status, origin


def test_a_token_or_its_hash_from_a_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    assert token_hash(None, file) == sha256_of(TOKEN)
    file.write_text(sha256_of(TOKEN))
    assert token_hash(None, file) == sha256_of(TOKEN)
    assert token_hash(TOKEN, None) == sha256_of(TOKEN)
    assert token_hash(None, None) is None


@pytest.mark.parametrize(
    ("token", "fault"), [("short", "shorter"), ("sha256:zz", "not a hash"), ("", "shorter")]
)
def test_tokens_that_protect_nothing_are_refused(token: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        token_hash(token, None)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        token_hash(None, tmp_path / "absent")


def test_which_addresses_are_this_machine() -> None:
    names = ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "0.0.0.0", "::", "10.0.0.1", "host", "")
    assert [is_loopback(name) for name in names] == [True] * 5 + [False] * 5
