"""API keys and tenants on a whole fleet: each claim of docs/security.md about keys has its test here."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.auth.hashing import sha256_of
from tests.e2e.conftest import Fleet, start_fleet, wait_until

SECRETS = {
    name: f"pgw_secret-of-{name}"
    for name in ("open", "narrow", "slow", "tokens", "one", "acme", "globex", "trusted", "later", "gone")
}
PROMPT = "the quick brown fox jumps over the lazy dog and the secret of this prompt is swordfish " * 6


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "hash": sha256_of(SECRETS[name]), **more}


ENTRIES = [
    entry("open"),
    entry("narrow", models=["other-*"]),
    entry("slow", requests_per_minute=2),
    entry("tokens", tokens_per_minute=50),
    entry("one", max_parallel=1),
    entry("acme", cache_salt="auto"),
    entry("globex", cache_salt="globex-salt"),
    entry("trusted", allow=["kv_transfer_params"]),
    entry("gone"),
]


def write_keys(path: Path, entries: list[dict[str, Any]]) -> None:
    """As an editor or a mounted secret does it: the file is another one at once."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"keys": entries}))
    fresh.replace(path)


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    write_keys(path, ENTRIES)
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, keys_file: Path) -> Iterator[Fleet]:
    args = ("--api-keys-file", str(keys_file))
    with start_fleet(tmp_path_factory.mktemp("guarded"), args=args) as fleet:
        yield fleet


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2, **more}


def ask(fleet: Fleet, key: str | None, path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {SECRETS.get(key, key)}"}
    return httpx.post(fleet.url + path, json=body(**more), headers=headers, trust_env=False, timeout=60)


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["type"], error["code"]


def test_without_a_key_nothing_is_served(guarded: Fleet) -> None:
    wrong = (401, "authentication_error", "invalid_api_key")
    before = guarded.metric("gateway_unauthorized_total")
    for key in (None, "wrong", SECRETS["open"][:-1], SECRETS["open"] + "x", sha256_of(SECRETS["open"])):
        assert error_of(ask(guarded, key)) == wrong
    for path in ("/v1/completions", "/v1/embeddings", "/tokenize", "/v1/messages", "/v1/audio/speech"):
        assert ask(guarded, None, path).status_code == 401
    for path in ("/v1/models", "/v1/models/tiny", "/nothing"):
        assert httpx.get(guarded.url + path, trust_env=False).status_code == 401
    assert guarded.metric("gateway_unauthorized_total") == before + 5 + 5 + 3


def test_a_load_balancer_needs_no_key(guarded: Fleet) -> None:
    for path in ("/health", "/ready"):
        assert httpx.get(guarded.url + path, trust_env=False).status_code == 200


def test_the_official_clients_bring_their_key_in_their_own_way(guarded: Fleet) -> None:
    with openai.OpenAI(api_key=SECRETS["open"], base_url=guarded.url + "/v1", max_retries=0) as client:
        answer = client.chat.completions.create(**body())
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
    with (
        openai.OpenAI(api_key="wrong", base_url=guarded.url + "/v1", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with (
        anthropic.Anthropic(api_key="wrong", base_url=guarded.url, max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(model="tiny", max_tokens=2, messages=[{"role": "user", "content": "hi"}])


def test_a_body_is_not_even_read_without_a_key(guarded: Fleet) -> None:
    """Its end never comes, and the answer does."""
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
        client.sendall(head + b"{")
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_models_are_those_of_the_key(guarded: Fleet) -> None:
    assert error_of(ask(guarded, "narrow")) == (403, "permission_error", None)
    assert ask(guarded, "narrow", model="other-model").status_code == 404
    assert error_of(ask(guarded, "narrow", model=""))[0] == 403

    def listed(key: str) -> list[str]:
        headers = {"x-api-key": SECRETS[key]}
        rows = httpx.get(guarded.url + "/v1/models", headers=headers, trust_env=False).json()["data"]
        return [row["id"] for row in rows]

    assert listed("open") == ["tiny"]
    assert listed("narrow") == []
    one = httpx.get(
        guarded.url + "/v1/models/tiny", headers={"x-api-key": SECRETS["narrow"]}, trust_env=False
    )
    assert one.status_code == 404
    assert "tiny'" in one.json()["error"]["message"]
    assert "there are: none" in one.json()["error"]["message"]


def test_requests_a_minute(guarded: Fleet) -> None:
    assert [ask(guarded, "slow").status_code for _ in range(2)] == [200, 200]
    refused = ask(guarded, "slow")
    assert error_of(refused) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 30  # a request each 30 s
    assert "2 requests a minute" in refused.json()["error"]["message"]
    assert ask(guarded, "open").status_code == 200
    assert guarded.metric("gateway_key_limited_total", key="slow") >= 1


def test_tokens_a_minute_as_the_engine_counts_them(guarded: Fleet) -> None:
    first = ask(guarded, "tokens")
    used = first.json()["usage"]["total_tokens"]
    assert used > 50  # larger than the whole minute: a full bucket lets it pass, and is then in debt
    refused = ask(guarded, "tokens")
    assert error_of(refused) == (429, "rate_limit_error", "rate_limit_exceeded")
    # until the debt is paid: the bucket had 50, used are `used`, 50 come a minute
    at_least = (used - 50) / 50 * 60
    assert at_least * 0.5 < int(refused.headers["retry-after"]) <= at_least + 61
    assert guarded.metric("gateway_key_tokens_total", key="tokens") == used


def test_requests_at_once(guarded: Fleet) -> None:
    headers = {"authorization": f"Bearer {SECRETS['one']}"}
    url = guarded.url + "/v1/chat/completions"
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream(
            "POST", url, json=body(stream=True, max_tokens=240, ignore_eos=True), headers=headers
        ) as running,
    ):
        assert running.status_code == 200
        refused = ask(guarded, "one")
        assert error_of(refused) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert "under way" in refused.json()["error"]["message"]
    # the client has left: its place is free again
    wait_until(lambda: ask(guarded, "one").status_code == 200, what="a free place")


def test_one_tenant_cannot_find_out_what_another_has_asked(guarded: Fleet) -> None:
    """The timing attack needs a shared block: with a salt of its own, a key meets only its own."""

    def matched(key: str, **more: Any) -> tuple[int, int]:
        guarded.settle()
        answer = ask(guarded, key, **more)
        assert answer.status_code == 200, answer.text
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return int(answer.headers["x-gateway-matched-tokens"]), cached

    secret = [{"role": "user", "content": "our merger with Initech closes on Friday " * 12}]
    assert matched("acme", messages=secret) == (0, 0)
    promised, cached = matched("acme", messages=secret)
    assert promised == cached > 0  # a tenant's own cache works
    assert matched("globex", messages=secret) == (0, 0)
    assert matched("open", messages=secret) == (0, 0)
    # nor by naming the other's salt
    assert matched("globex", messages=secret, cache_salt="auto") == (0, 0)
    for salt in ("tenant:globex-salt", "tenant:globex-salt|auto"):
        refused = ask(guarded, "open", messages=secret, cache_salt=salt)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_salt")
    assert matched("open", messages=secret, cache_salt="globex-salt") == (0, 0)
    # a client's own salt divides its tenant's cache further
    assert matched("acme", messages=secret, cache_salt="x") == (0, 0)
    promised, cached = matched("acme", messages=secret, cache_salt="x")
    assert promised == cached > 0


def test_a_trusted_key_may_say_what_the_door_takes_from_others(guarded: Fleet) -> None:
    def stripped() -> float:
        return guarded.metric("gateway_door_stripped_total")

    before = stripped()
    assert ask(guarded, "trusted", kv_transfer_params=None).status_code == 200
    assert stripped() == before
    assert ask(guarded, "open", kv_transfer_params=None).status_code == 200
    assert stripped() == before + 1


def test_keys_are_exchanged_while_it_runs_and_a_broken_file_changes_nothing(
    guarded: Fleet, keys_file: Path
) -> None:
    assert ask(guarded, "gone").status_code == 200
    assert ask(guarded, "later").status_code == 401
    write_keys(keys_file, [e for e in ENTRIES if e["id"] != "gone"] + [entry("later")])
    wait_until(lambda: ask(guarded, "later").status_code == 200, what="the new key")
    assert ask(guarded, "gone").status_code == 401
    keys_file.write_text("keys: [{id: later, hash: pgw_pasted-in-plain}]")
    wait_until(
        lambda: "settings were not reloaded" in guarded.gateway_log.read_text(),
        what="the refusal of the file",
    )
    assert ask(guarded, "later").status_code == 200
    assert "pgw_pasted-in-plain" not in guarded.gateway_log.read_text()
    write_keys(keys_file, ENTRIES)


def test_logs_tell_who_and_how_much_and_neither_key_nor_prompt(guarded: Fleet) -> None:
    answer = ask(guarded, "open")
    identifier = answer.headers["x-request-id"]
    ask(guarded, "not-a-key-but-a-mistake")
    log = guarded.gateway_log
    wait_until(lambda: identifier in log.read_text(), what="the access line")
    text = log.read_text()
    (line,) = (json.loads(row) for row in text.splitlines() if identifier in row)
    usage = answer.json()["usage"]
    said = {
        name: line[name]
        for name in (
            "key",
            "model",
            "worker",
            "status",
            "outcome",
            "prompt_tokens",
            "completion_tokens",
            "tries",
        )
    }
    assert said == {
        "key": "open",
        "model": "tiny",
        "worker": answer.headers["x-gateway-worker"],
        "status": 200,
        "outcome": "ok",
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": 2,
        "tries": 1,
    }
    assert line["matched_tokens"] == int(answer.headers["x-gateway-matched-tokens"])
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert line["total_s"] > 0
    logs = [guarded.log, *guarded.run_dir.glob("*.log")]
    assert len(logs) == 4  # the command's own, the gateway's, two workers'
    everything = "".join(path.read_text() for path in logs)
    for secret in (*SECRETS.values(), "not-a-key-but-a-mistake", "swordfish", "Initech", "Bearer pgw"):
        assert secret not in everything


def test_workers_never_see_a_clients_key(guarded: Fleet) -> None:
    """The workers' logs are clean above; here the header itself, at an engine that shows what it got."""
    from gateway.api.headers import lasting_headers

    sent = lasting_headers(
        [(b"authorization", b"Bearer k"), (b"x-api-key", b"k"), (b"api-key", b"k"), (b"x-mine", b"1")],
        blocked=(),
        readable=False,
        with_authorization=False,
        own_authorization=b"Bearer engines-own",
        traced=False,
    )
    assert sent == [(b"x-mine", b"1"), (b"authorization", b"Bearer engines-own")]
