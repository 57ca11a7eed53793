"""A client decides on its words, but not on how long an error or a line of the log is."""

from __future__ import annotations

import json
import logging

import pytest

from gateway.api.body import parsed
from gateway.errors import LONGEST_MESSAGE, InvalidRequest, brief
from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import http
from tests.gateway.api.whole import whole

pytestmark = pytest.mark.anyio

LONG = "secret prompt " * 20_000
SHOWN = f"{LONG[:200]}… (280,000 characters)"


async def test_a_model_name_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    async with (
        FaultyEngine(answers(), model="m") as engine,
        whole(engine.url, access_log=True) as gateway,
        http() as client,
    ):
        body = {"model": LONG, "messages": [{"role": "user", "content": "hi"}]}
        answer = await client.post(gateway.url + "/v1/chat/completions", json=body)
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == f"model {SHOWN!r} does not exist; there are: m"
        await gateway.records(1)
    (line,) = [record for record in caplog.records if record.name == "gateway.access"]
    assert len(json.dumps(line.__dict__, default=str)) < 4000


def test_nothing_makes_a_message_longer_than_that() -> None:
    error = InvalidRequest(f"unsupported {LONG!r}")
    assert (
        error.message == f"unsupported 'secret prompt {LONG[14 : LONGEST_MESSAGE - 13]}… (280,014 characters)"
    )
    assert brief("short") == "short"


def test_a_number_of_too_many_digits_is_told_as_that() -> None:
    with pytest.raises(InvalidRequest, match=r"^the request's body has a number of too many digits$"):
        parsed(b'{"model": "m", "n": ' + b"1" * 5000 + b"}")
