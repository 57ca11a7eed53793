"""What a key changes about a request on its way: at a real door, before an engine that shows what it got."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

import httpx
import pytest

from gateway.api.gate import Gate, Visit
from gateway.api.openai import PublicApp
from gateway.api.retry import RetryPolicy
from gateway.api.serve import ProxyService, ServeOptions
from gateway.auth.authenticator import Authenticator
from gateway.auth.hashing import sha256_of
from gateway.auth.keyring import Keyring
from gateway.auth.keys import ApiKey, Limits
from gateway.auth.limits import LocalLimiter
from gateway.errors import Forbidden, InvalidRequest
from gateway.prompt.reader import read_prompt
from gateway.upstream.client import UpstreamClient
from tests.faults import FaultyEngine, Script, answers
from tests.gateway.api.rig import InOrderRouter, Records, http, running

pytestmark = pytest.mark.anyio

ANSWER = b'{"usage": {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}}'
TIGHT = Limits(requests_per_minute=1000, tokens_per_minute=100_000, max_parallel=3)
KEYS = (
    ApiKey("plain", (sha256_of("plain"),)),
    ApiKey("tenant", (sha256_of("tenant"),), cache_salt="acme"),
    ApiKey("tight", (sha256_of("tight"),), limits=TIGHT),
    ApiKey("narrow", (sha256_of("narrow"),), models=("m",)),
    ApiKey("slow", (sha256_of("slow"),), models=("m",), limits=Limits(requests_per_minute=2, max_parallel=2)),
)
OPTIONS = ServeOptions(
    retry=RetryPolicy(tries=1, base=0.001),
    forward_authorization=False,
    worker_authorization=b"Bearer engines-own",
    max_body=100_000,
)


@dataclass
class Told:
    known_keys: list[str] = field(default_factory=list)
    unauthorized_count: int = 0
    limited_keys: list[str] = field(default_factory=list)
    used: list[tuple[str, int]] = field(default_factory=list)

    def known(self, keys: Iterable[str]) -> None:
        self.known_keys += keys

    def unauthorized(self) -> None:
        self.unauthorized_count += 1

    def limited(self, key: str) -> None:
        self.limited_keys.append(key)

    def ended(self, key: str, tokens: int) -> None:
        self.used.append((key, tokens))


@dataclass
class Door:
    url: str
    engine: FaultyEngine
    router: InOrderRouter
    limiter: LocalLimiter
    told: Told
    user: httpx.AsyncClient

    async def post(self, path: str, key: str, content: bytes, **headers: str) -> httpx.Response:
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        return await self.user.post(self.url + path, content=content, headers=sent)


@contextlib.asynccontextmanager
async def door(script: Script | None = None) -> AsyncIterator[Door]:
    client, told, limiter = UpstreamClient(), Told(), LocalLimiter(perf_counter)
    async with FaultyEngine(script or answers(ANSWER)) as engine:
        router = InOrderRouter([engine.url])
        router.models[""] = "m"
        gate = Gate(Authenticator(Keyring(KEYS), lambda: 0.0), limiter, told)
        service = ProxyService(
            router,
            client,
            Records(),
            read_prompt,
            options=OPTIONS,
            clock=perf_counter,
            rng=Random(1),
            gate=gate,
        )
        app = PublicApp(service, models=lambda: [], readiness=lambda: None, gate=gate)
        async with running(app) as port, http() as user:
            yield Door(f"http://127.0.0.1:{port}", engine, router, limiter, told, user)
        router.assert_idle()
        await client.close()


CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "x_unknown":  1.0}'


async def test_a_clients_key_stays_here_and_the_gateways_own_goes_on() -> None:
    async with door() as d:
        assert (
            await d.post("/v1/chat/completions", "plain", CHAT, **{"api-key": "plain"})
        ).status_code == 200
        (seen,) = d.engine.seen
        assert seen.header("authorization") == ["Bearer engines-own"]
        assert seen.header("x-api-key") == seen.header("api-key") == []
        assert seen.body == CHAT  # nothing else has changed
        assert d.told.used == [("plain", 42)]


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/score"],
)
async def test_a_tenants_salt_goes_with_every_api_that_caches(path: str) -> None:
    async with door() as d:
        given = {"model": "m", "prompt": "hi", "messages": [], "input": "hi", "max_tokens": 5}
        for own, sent in ((None, "tenant:acme"), ("x", "tenant:acme|x"), (7, "tenant:acme")):
            body = given if own is None else {**given, "cache_salt": own}
            assert (await d.post(path, "tenant", json.dumps(body).encode())).status_code == 200
            assert d.engine.seen[-1].json() == {**given, "cache_salt": sent}
            assert d.router.asked[-1][0].cache_salt == sent  # so its block keys have another root


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
async def test_what_caches_nothing_keeps_its_bytes(path: str) -> None:
    async with door() as d:
        assert (await d.post(path, "tenant", CHAT)).status_code == 200
        assert d.engine.seen[0].body == CHAT


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/messages"])
async def test_without_a_key_the_answer_says_how_to_show_one(path: str) -> None:
    """RFC 9110, section 15.5.2."""
    async with door() as d:
        method = "GET" if path == "/v1/models" else "POST"
        answer = await d.user.request(method, d.url + path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_form_carries_no_salt() -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\xff\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    )
    async with door() as d:
        kind = {"content-type": "multipart/form-data; boundary=b"}
        assert (await d.post("/v1/audio/transcriptions", "tenant", form, **kind)).status_code == 200
        assert d.engine.seen[0].body == form


@pytest.mark.parametrize("key", ["plain", "tenant"])
@pytest.mark.parametrize("salt", [b"tenant:acme", b"mine"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
            b'--b\r\nContent-Disposition: form-data; name="cache_salt"\r\n\r\n%s\r\n--b--\r\n',
        ),
        ("application/x-www-form-urlencoded", b"model=m&cache%%5fsalt=%s"),
    ],
)
async def test_nor_can_a_form(kind: str, form: bytes, salt: bytes, key: str) -> None:
    async with door() as d:
        answer = await d.post("/v1/audio/speech", key, form % salt, **{"content-type": kind})
        assert answer.status_code == (400 if salt == b"tenant:acme" else 200)
        assert [seen.body for seen in d.engine.seen] == ([] if salt == b"tenant:acme" else [form % salt])


async def test_a_model_in_what_is_no_form_with_files_is_none() -> None:
    """The part is no part there: a key with a list of models could name one and have another."""
    async with door() as d:
        body = b'model=other&x=name="model"\r\n\r\nm\r\n'
        kind = {"content-type": "application/x-www-form-urlencoded"}
        assert (await d.post("/v1/audio/speech", "plain", body, **kind)).status_code == 200
        assert d.router.asked[0][0].model == ""


@pytest.mark.parametrize("adapter", ["french", ["m", "french"]])
async def test_a_restricted_key_names_no_other_adapter_beside_its_model(adapter: str | list[str]) -> None:
    """SGLang takes one from a field of its own."""
    async with door() as d:
        for named, status in ((adapter, 403), ("m", 200), (None, 200)):
            body = json.dumps({"model": "m", "messages": [], "lora_path": named}).encode()
            assert (await d.post("/v1/chat/completions", "narrow", body)).status_code == status
            assert (await d.post("/v1/chat/completions", "plain", body)).status_code == 200


@pytest.mark.parametrize("salt", ["tenant:acme", ["mine", "tenant:acme"]], ids=["text", "SGLang's list"])
async def test_other_keys_cannot_name_a_tenants_salt(salt: str | list[str]) -> None:
    async with door() as d:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
            body = json.dumps({"model": "m", "prompt": "a", "messages": [], "cache_salt": salt}).encode()
            assert (await d.post(path, "plain", body)).status_code == 400
        assert d.engine.seen == []


@pytest.mark.parametrize(
    ("script", "content", "status", "tokens"),
    [
        (answers(ANSWER), CHAT, 200, 42),
        (answers(b"boom", 500), CHAT, 500, 0),
        (answers(b'{"error": {}}', 400), CHAT, 400, 0),
        (answers(ANSWER), b"{broken", 400, 0),
        (answers(ANSWER), b'{"model": "unknown"}', 404, 0),
        (answers(ANSWER), b'{"x": "' + b"a" * 200_000 + b'"}', 413, 0),
    ],
)
async def test_a_key_gets_back_its_place_and_what_it_did_not_use(
    script: Script, content: bytes, status: int, tokens: int
) -> None:
    async with door(script) as d:
        for _ in range(5):  # more than are allowed at once
            assert (await d.post("/v1/chat/completions", "tight", content)).status_code == status
        assert d.limiter.in_flight("tight") == 0
        assert d.told.used == [("tight", tokens)] * 5
        level = d.limiter._accounts["tight"].tokens
        assert level is not None
        assert 100_000 - 5 * tokens <= level.level <= 100_000


async def test_a_restricted_key_must_name_its_model() -> None:
    async with door() as d:
        assert (await d.post("/v1/chat/completions", "narrow", CHAT)).status_code == 200
        for body in (
            b'{"messages": []}',
            b'{"model": "other"}',
            b'{"model": ["m"]}',
            b'{"model": "m", "model": "o"}',
        ):
            answer = await d.post("/v1/chat/completions", "narrow", body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (403, "model"), body
        assert len(d.engine.seen) == 1


async def test_what_is_forbidden_costs_its_key_nothing() -> None:
    """Two requests a minute: the third is one too many only where all three count."""
    async with door() as d:
        for _ in range(3):
            answer = await d.post("/v1/chat/completions", "slow", b'{"model": "other"}')
            assert answer.status_code == 403
        assert d.limiter.in_flight("slow") == 0
        for status in (200, 200, 429):
            assert (await d.post("/v1/chat/completions", "slow", CHAT)).status_code == status
        assert d.told.used == [("slow", 0)] * 3 + [("slow", 42)] * 2


async def test_a_form_that_names_two_models_is_not_for_a_restricted_key() -> None:
    def part(name: bytes, value: bytes) -> bytes:
        return b"--b\r\nContent-Disposition: form-data; " + name + b"\r\n\r\n" + value + b"\r\n"

    kind = {"content-type": "multipart/form-data; boundary=b"}
    path = "/v1/audio/transcriptions"
    async with door() as d:
        one = part(b'name="model"', b"m")
        assert (await d.post(path, "narrow", one + b"--b--\r\n", **kind)).status_code == 200
        for other in (b'name="model"', b"name=model", b'filename="f"; name = "model"'):
            two = one + part(other, b"other") + b"--b--\r\n"
            answer = await d.post(path, "narrow", two, **kind)
            assert answer.status_code == 403, other
        assert len(d.engine.seen) == 1


def test_a_request_may_be_less_urgent_than_its_key_and_never_more() -> None:
    visit = Visit(ApiKey("a", priority=2, weight=3.0))
    for said, counts in ((b"-1", 2), (b"2", 2), (b"5", 5)):
        caller = visit.caller({b"x-priority": said}, {})
        assert (caller.key, caller.weight, caller.priority) == ("a", 3.0, counts)
    assert visit.caller({}, {"service_tier": "priority"}).priority == 2
    assert Visit().caller({b"x-priority": b"-1"}, {}).priority == -1


def test_sessions_of_two_keys_are_two_sessions() -> None:
    headers = {b"x-session-id": b"s"}
    found = {Visit(ApiKey(name)).caller(headers, {}).session for name in ("a", "b")}
    assert len(found) == 2
    assert Visit(ApiKey("a")).caller({}, {}).session == ""


def test_a_salt_that_no_engine_would_take_is_refused_here() -> None:
    visit = Visit(ApiKey("a", cache_salt="s" * 48))
    assert visit.salt_for("x" * 72) == f"tenant:{'s' * 48}|{'x' * 72}"  # 128 characters
    with pytest.raises(InvalidRequest, match="too long"):
        visit.salt_for("x" * 73)


def test_no_salt_of_one_tenant_can_be_made_into_anothers() -> None:
    short, longer = Visit(ApiKey("a", cache_salt="a")), Visit(ApiKey("b", cache_salt="ab"))
    mine = {short.salt_for(own) for own in ("", "b", "|b", "b|", "ab")}
    theirs = {longer.salt_for(own) for own in ("", "b", "|", "a")}
    assert not mine & theirs


def test_without_keys_nothing_is_checked() -> None:
    Visit().check_model("anything")
    assert Visit().salt_for("tenant:x") is None
    with pytest.raises(Forbidden):
        Visit(ApiKey("a", models=("m",))).check_model("anything")
