"""What is changed through admin reaches every process, also those that start later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.routing import APIRoute

from gateway.app import build
from gateway.processes.journal import REACH, Journal, Write
from gateway.settings import Settings

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def write(method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> Write:
    return Write(method, path, query, b"" if body is None else json.dumps(body).encode())


def journal(*writes: Write) -> Journal:
    made = Journal()
    for one in writes:
        fields = json.loads(one.body or b"{}")
        answer = {"id": one.query.get("id") or fields.get("id") or fields.get("url")}
        made.add(one, json.dumps(answer).encode())
    return made


ADD = write("POST", "/admin/workers", {"url": A})
REMOVE = write("DELETE", "/admin/workers", id=A)
DRAIN = write("POST", "/admin/workers/drain", {"id": A})
RESUME = write("POST", "/admin/workers/resume", {"id": A})
SLOW = write("POST", "/admin/workers/weight", {"id": A, "weight": 0.5})
FAST = write("POST", "/admin/workers/weight", {"id": A, "weight": 2.0})
OTHER = write("POST", "/admin/workers/drain", {"id": B})
ROBIN = write("PUT", "/admin/policy", {"policy": "round_robin"})
RANDOM = write("PUT", "/admin/policy", {"policy": "random"})
OF_M = write("PUT", "/admin/policy", {"policy": "random", "model": "m"})
NOT_OF_M = write("DELETE", "/admin/policy", model="m")


@pytest.mark.parametrize(
    ("done", "told"),
    [
        ([ADD, DRAIN], [ADD, DRAIN]),
        ([ADD, DRAIN, SLOW, REMOVE], [REMOVE]),
        ([REMOVE, ADD], [ADD]),
        ([DRAIN, OTHER, RESUME], [OTHER, RESUME]),
        ([SLOW, DRAIN, FAST], [DRAIN, FAST]),
        ([ROBIN, OF_M, RANDOM], [OF_M, RANDOM]),
        ([OF_M, NOT_OF_M], [NOT_OF_M]),
    ],
)
def test_the_last_word_about_each_thing(done: list[Write], told: list[Write]) -> None:
    assert journal(*done).entries() == told


def test_words_about_a_worker_that_left_are_forgotten() -> None:
    made = journal(DRAIN, OTHER, SLOW, REMOVE, OTHER, ROBIN)
    made.keep_known({A})
    assert made.entries() == [REMOVE, ROBIN]


def test_settings_that_speak_of_policies_anew_have_the_last_word() -> None:
    made = journal(ROBIN, OF_M, DRAIN)
    old = Settings(workers=(A, B))
    made.reloaded(old, Settings(workers=(A, B), tries=5))
    assert made.entries() == [ROBIN, OF_M, DRAIN]
    made.reloaded(old, Settings(workers=(A, B), policy="random"))
    assert made.entries() == [DRAIN]


def test_settings_that_speak_of_a_worker_anew_have_the_last_word() -> None:
    made = journal(DRAIN, SLOW, OTHER)
    made.reloaded(Settings(workers=(A, B)), Settings(workers=(f"{A},weight=3", B)))
    assert made.entries() == [OTHER]


@pytest.mark.parametrize(
    ("done", "status", "settled"),
    [
        (ADD, 201, True),
        (ADD, 400, True),  # it has it already
        (DRAIN, 404, False),  # it has not found it yet
        (OF_M, 404, False),
        (NOT_OF_M, 404, True),  # it never had one
        (DRAIN, 503, False),
    ],
)
def test_what_has_to_be_said_again(done: Write, status: int, settled: bool) -> None:
    assert done.settled(status) is settled


@pytest.mark.anyio
async def test_every_route_that_changes_something_says_how_far_it_reaches() -> None:
    app = build(Settings(workers=("http://127.0.0.1:1",), redis_url="redis://127.0.0.1:1/0"))
    described = app.admin.inner.openapi()["paths"]  # type: ignore[attr-defined]
    found = {
        (method.upper(), path)
        for path, methods in described.items()
        for method in methods
        if method not in ("get", "head")
    }
    assert found == set(REACH)
    # and none that the description leaves out
    hidden = [r for r in app.admin.inner.routes if isinstance(r, APIRoute) and not r.include_in_schema]  # type: ignore[attr-defined]
    assert {method for route in hidden for method in route.methods} <= {"GET", "HEAD"}
