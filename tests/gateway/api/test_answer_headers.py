"""What an answer says of its decision."""

from __future__ import annotations

import pytest

from gateway.api.headers import answer_headers
from gateway.fleet.load import Lease, WorkerLoad
from gateway.routing.route import Route
from gateway.types import WorkerId

WORKER = WorkerId("http://a:1")


@pytest.mark.parametrize(
    ("prompt", "matched", "tokens"),
    [
        (40, 32, [(b"x-gateway-prompt-tokens", b"40"), (b"x-gateway-matched-tokens", b"32")]),
        (0, 0, [(b"x-gateway-matched-tokens", b"0")]),  # not read: no prompt has no tokens
    ],
)
def test_of_a_prompt_that_was_not_read_nobody_says_how_long_it_is(
    prompt: int, matched: int, tokens: list[tuple[bytes, bytes]]
) -> None:
    lease = Lease.take(WorkerLoad(WORKER), prompt_tokens=prompt, matched_tokens=matched)
    route = Route(WORKER, "http://a:1", "m", lease, prompt, matched, matched, [], "match")
    assert answer_headers(route, b"one") == [
        (b"x-request-id", b"one"),
        (b"x-gateway-worker", b"http://a:1"),
        *tokens,
    ]
