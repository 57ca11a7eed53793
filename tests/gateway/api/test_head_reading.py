"""What is made of a head once holds for each request with it, and only for the settings it was made for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.direct import Cycle
from gateway.api.door import Door
from gateway.api.head_reading import HeadReading, head_reading
from gateway.api.headers import RequestIds
from gateway.errors import InvalidRequest

HEADERS = [
    (b"host", b"x"),
    (b"content-length", b"3"),
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer k"),
    (b"x-smg-target", b"w"),
    (b"x-mine", b"1"),
    (b"x-mine", b"2"),
]
SCOPE: dict[str, Any] = {
    "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"a=b",
    "root_path": "", "headers": HEADERS,
}  # fmt: skip


def reading() -> HeadReading:
    return head_reading(SCOPE, None)


def test_a_head_says_all_but_its_length() -> None:
    read = reading()
    assert (read.method, read.target) == (b"POST", b"/v1/completions?a=b")
    assert read.lookup == {
        b"host": b"x", b"content-type": b"application/json", b"authorization": b"Bearer k",
        b"x-smg-target": b"w", b"x-mine": b"1",
    }  # fmt: skip
    assert not read.no_form  # for a name stands there twice
    assert (read.given_id, read.trace_id) == (None, "")


def test_it_is_made_once_for_requests_with_the_same_notes() -> None:
    notes: dict[str, Any] = {}
    scopes = [{**SCOPE, "headers": HEADERS.copy()} for _ in range(3)]
    cycles = [
        Cycle(
            scope, None, FlowControl(asyncio.Transport()), [], expect_100_continue=False, keep_alive=True,
            on_response=lambda: None, notes=kept,
        )
        for scope, kept in zip(scopes, (notes, notes, {}), strict=True)
    ]  # fmt: skip
    one, same, other = (
        head_reading(scope, cycle.scope["gateway.direct"])  # type: ignore[typeddict-item]
        for scope, cycle in zip(scopes, cycles, strict=True)
    )
    assert one is same
    assert other is not one
    assert other == one


def test_each_door_judges_it() -> None:
    read = reading()
    for _ in range(2):
        assert read.steering(Door()) == [b"x-smg-target"]
        assert read.steering(Door.open()) == []
        with pytest.raises(InvalidRequest, match="x-smg-target"):
            read.steering(Door(refuse=True))


def test_workers_get_it_as_the_settings_of_the_moment_have_it() -> None:
    read, blocked = reading(), [b"x-smg-target"]
    mine = b"x-mine: 1\r\nx-mine: 2\r\n"
    json = b"content-type: application/json\r\n"
    key = b"authorization: Bearer k\r\n"
    target = b"x-smg-target: w\r\n"
    for _ in range(2):
        assert read.for_workers(blocked, False, True, None, False) == json + key + mine
        assert read.for_workers([], False, True, None, False) == json + key + target + mine
        assert read.for_workers(blocked, False, False, None, False) == json + mine
        own = b"authorization: own\r\n"
        assert read.for_workers(blocked, False, True, b"own", False) == json + mine + own
        plain = b"accept-encoding: identity\r\n"
        assert read.for_workers(blocked, True, False, None, True) == json + mine + plain
        via = b"via: 1.1 me\r\n"
        assert read.for_workers(blocked, False, True, None, False, b"1.1 me") == json + key + mine + via


def test_names_of_requests_differ() -> None:
    new = RequestIds()
    names = [new() for _ in range(1000)]
    assert len(set(names)) == 1000
    assert {len(bytes.fromhex(name)) for name in names} == {16}
