"""JSON can say half of a surrogate pair, which nothing can encode: the engine is the one to refuse it."""

from __future__ import annotations

import pytest

from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import http
from tests.gateway.api.whole import whole

pytestmark = pytest.mark.anyio

HALF = rb'"x\ud800"'
NO = b'{"error":{"message":"not valid Unicode","type":"BadRequestError","code":400}}'
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"%s":%s}'


@pytest.mark.parametrize("policy", ["estimated_ttft", "session_affinity", "consistent_hash"])
async def test_half_a_surrogate_pair_goes_on_as_it_came(policy: str) -> None:
    async with (
        FaultyEngine(answers(NO, 400), model="m") as one,
        FaultyEngine(answers(NO, 400), model="m") as two,
        whole(one.url, two.url, policy=policy) as gateway,
        http() as client,
    ):
        bodies = [CHAT % (name, HALF) for name in (b"cache_salt", b"user", b"prompt_cache_key", b"tools")]
        bodies += [b'{"model":"m","messages":[{"role":"user","content":%s}]}' % HALF]
        for body in bodies:
            answer = await client.post(gateway.url + "/v1/chat/completions", content=body)
            assert (answer.status_code, answer.content) == (400, NO), body
        assert sorted(seen.body for seen in one.seen + two.seen) == sorted(bodies)
        unknown = await client.post(gateway.url + "/v1/chat/completions", content=b'{"model":%s}' % HALF)
        assert unknown.status_code == 404
