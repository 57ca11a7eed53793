"""Fuzz behind routing: odd requests to ready engines, and good ones to an engine that answers anything.

No 5xx but the engine's own, no crash, no trace in the log, nothing left in flight. Where an engine's answer
is not HTTP or breaks off, the gateway says 502 (docs/faults.md); that alone is expected.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.auth.hashing import sha256_of
from tests.conftest import Spawn
from tests.faults import DONE, FaultyEngine, Turn, chunk, token, usage_chunk
from tests.heavy.fuzz_rig import FIELDS, JSON, PATHS, Door, post, status_of, talk

pytestmark = pytest.mark.heavy

ODD = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
KEYS = {"plain": "pgw_plain", "tenant": "pgw_tenant"}


@pytest.fixture
def ready(spawn: Spawn, free_port: Callable[[], int], tmp_path: Path) -> Iterator[Door]:
    """Two simulated engines that are there, with KV events and a real tokenizer; one key has a cache of its
    own, so that bodies are edited on their way."""
    command = ["--no-access-log", "--head-timeout", "1", "--body-timeout", "1", "--alias", "other=m"]
    for _ in range(2):
        engine, events, replay = free_port(), free_port(), free_port()
        worker = spawn(
            "-m", "workers", "serve", "--model", "sim:fast", "--tokenizer", "tiny", "--time-scale", "0",
            "--served-model-name", "m", "--adapter", "lora", "--port", str(engine), "--exit-with-parent",
            "--kv-events-port", str(events), "--kv-replay-port", str(replay),
        )  # fmt: skip
        worker.wait_http(f"http://127.0.0.1:{engine}/health", timeout=100)
        command += ["--worker", f"http://127.0.0.1:{engine},events=tcp://127.0.0.1:{events}"]
    keys = tmp_path / "keys.yaml"
    entries: list[dict[str, str]] = [{"id": name, "hash": sha256_of(key)} for name, key in KEYS.items()]
    entries[1]["cache_salt"] = "auto"
    keys.write_text(json.dumps({"keys": entries}))
    port, admin = free_port(), free_port()
    command += ["--port", str(port), "--admin-port", str(admin), "--api-keys-file", str(keys)]
    process = spawn("-m", "gateway", "serve", *command)
    process.wait_http(f"http://127.0.0.1:{port}/ready", timeout=100)
    made = Door(process, port, f"http://127.0.0.1:{admin}")
    yield made
    made.assert_sound()


# -- requests -----------------------------------------------------------------------------------------------

TEXT = st.text(max_size=200) | st.sampled_from(("", "\ud800", "a\x00b", "<|im_end|>", "{{ 1/0 }}", "é" * 300))
KIND = st.sampled_from(
    ("text", "input_text", "output_text", "refusal", "thinking", "image_url", "input_image", "input_audio",
     "video_url", "file", "image", "tool_use", "tool_result", "document", "tool_reference", None, 7)
)  # fmt: skip
PART = st.dictionaries(
    st.sampled_from(
        ("type", "text", "image_url", "input_audio", "uuid", "refusal", "thinking", "source", "name", "x")
    ),
    TEXT | JSON | st.just({"url": "data:image/png;base64,iVBORw0KGgo="}),
    max_size=4,
)
CONTENT = (
    TEXT
    | st.lists(st.builds(lambda kind, part: {"type": kind, **part}, KIND, PART) | TEXT | JSON, max_size=4)
    | JSON
)
CALL = st.builds(
    lambda name, arguments, more: {
        "id": "c", "type": "function", "function": {"name": name, "arguments": arguments}, **more
    },
    TEXT, TEXT | JSON | st.just('{"a": 1}'), PART,
)  # fmt: skip
ROLE = st.sampled_from(("user", "assistant", "system", "developer", "tool", "function", "", "other", None, 3))
MESSAGE = st.builds(
    lambda role, content, calls, more: {
        "role": role, "content": content, **({"tool_calls": calls} if calls else {}), **more
    },
    ROLE, CONTENT, st.lists(CALL | JSON, max_size=2), st.dictionaries(st.sampled_from(
        ("name", "tool_call_id", "tools", "reasoning", "reasoning_content", "type", "output", "call_id")
    ), TEXT | JSON, max_size=2),
)  # fmt: skip
TOOL = st.builds(
    lambda name, parameters, more: {
        "type": "function", "function": {"name": name, "description": name, "parameters": parameters}, **more
    },
    TEXT, JSON, PART,
) | JSON  # fmt: skip
PROMPT = TEXT | st.lists(TEXT | st.integers(-2, 2**40) | st.lists(st.integers(-1, 2**33), max_size=40))
ODD_FIELDS = st.fixed_dictionaries(
    {"model": st.sampled_from(("m", "m", "m", "other", "lora", "none", "", None, 1))},
    optional={
        "messages": st.lists(MESSAGE | JSON, max_size=4),
        "prompt": PROMPT,
        "input": PROMPT | st.lists(MESSAGE, max_size=3),
        "system": CONTENT,
        "instructions": TEXT | JSON,
        "tools": st.lists(TOOL, max_size=3),
        "stream": st.booleans() | JSON,
        "stream_options": st.just({"include_usage": True}) | JSON,
        "max_tokens": st.integers(-1, 8) | JSON,
        "n": st.integers(-1, 3) | JSON,
        "truncate_prompt_tokens": st.integers(-2, 2**70) | JSON,
        "cache_salt": TEXT | JSON,
        "chat_template": st.sampled_from(
            ("{{ messages }}", "{{ 1/0 }}", "{% for", "{{ ''.__class__ }}", "{{ 'a' * 99999999 }}")
        )
        | JSON,
        "chat_template_kwargs": JSON,
        "documents": JSON,
        "add_generation_prompt": JSON,
        "continue_final_message": st.booleans() | JSON,
        "tool_choice": st.sampled_from(("auto", "none", "required")) | JSON,
        "vllm_xargs": JSON,
        "previous_response_id": TEXT | JSON,
        "service_tier": TEXT | JSON,
        "reasoning_effort": TEXT | JSON,
    },
)
SENSIBLE = {
    "model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi",
    "max_tokens": 2,
}  # fmt: skip
# most of what is sensible, with a field or two of the odd ones in place of its own
NEARLY_SENSIBLE = st.builds(
    lambda odd, kept: {**SENSIBLE, **{name: odd[name] for name in sorted(odd)[kept : kept + 2]}},
    ODD_FIELDS,
    st.integers(0, 18),
)
HEADER = st.sampled_from(
    ("x-priority: 9", "x-priority: nan", "x-request-timeout: 1e400", "x-request-timeout: -1",
     "x-session-id: é", "traceparent: 00-x", "accept-encoding: gzip", "accept: text/html",
     "x-request-id: ", "expect: 100-continue", "content-encoding: gzip", "content-encoding: identity")
)  # fmt: skip


@pytest.mark.timeout(900)
def test_requests_of_any_shape(ready: Door) -> None:
    seen: set[int] = set()

    @settings(max_examples=1500, **ODD)
    @given(
        path=PATHS, fields=ODD_FIELDS | NEARLY_SENSIBLE, more=st.dictionaries(FIELDS, JSON, max_size=1),
        key=st.sampled_from(sorted(KEYS.values())), headers=st.lists(HEADER, max_size=2),
    )  # fmt: skip
    def probe(
        path: str, fields: dict[str, object], more: dict[str, object], key: str, headers: list[str]
    ) -> None:
        body = json.dumps({**fields, **more}).encode()
        heads = [head.encode().decode("latin-1") for head in headers]
        answer = talk(ready.port, post(path, body, f"authorization: Bearer {key}", *heads), stays=True)
        status = status_of(answer)
        seen.add(status)
        assert 200 <= status < 500, (path, body, answer)

    probe()
    assert {200, 400, 404} <= seen  # some of them made sense


@pytest.mark.timeout(900)
def test_bodies_broken_anywhere(ready: Door) -> None:
    """A good body with bytes changed, cut or doubled: the gateway and the engine read the same or neither."""
    message = {"role": "user", "content": [{"type": "text", "text": "häßlich \U0001f600 " * 9}]}
    good = json.dumps({"model": "m", "messages": [message], "max_tokens": 2, "stream": True}).encode()

    @settings(max_examples=600, **ODD)
    @given(at=st.integers(0, len(good)), upto=st.integers(0, 20), new=st.binary(max_size=6))
    def probe(at: int, upto: int, new: bytes) -> None:
        body = good[:at] + new + good[at + upto :]
        data = post("/v1/chat/completions", body, f"authorization: Bearer {KEYS['tenant']}")
        assert status_of(talk(ready.port, data, stays=True)) in (200, 400, 404, 422), body

    probe()


@pytest.mark.timeout(900)
def test_forms_of_any_shape(ready: Door) -> None:
    part = st.sampled_from((b"model", b"file", b"prompt", b"kv_transfer_params", b'a"b', b"a[b]", b""))

    @settings(max_examples=300, **ODD)
    @given(
        parts=st.lists(st.tuples(part, st.binary(max_size=30) | st.just(b"m")), max_size=4),
        boundary=st.sampled_from(("b", "b b", "", '"b"', "é")), end=st.sampled_from((b"\r\n", b"\n", b"")),
    )  # fmt: skip
    def probe(parts: list[tuple[bytes, bytes]], boundary: str, end: bytes) -> None:
        body = b"".join(
            b'--b\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s%s' % (name, value, end)
            for name, value in parts
        )
        kind = f"multipart/form-data; boundary={boundary}".encode().decode("latin-1")
        key = f"authorization: Bearer {KEYS['plain']}"
        data = post("/v1/audio/transcriptions", body + b"--b--\r\n", key, kind=kind)
        assert status_of(talk(ready.port, data, stays=True)) in (400, 404, 413), body

    probe()


# -- answers ------------------------------------------------------------------------------------------------


class Loop:
    """An event loop in a thread, for an engine that lives beside a test without one."""

    def __enter__(self) -> Loop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)


STATUS = st.sampled_from(
    (200, 200, 200, 204, 206, 304, 400, 404, 408, 418, 429, 499, 500, 502, 503, 504, 599)
)
HEAD = st.sampled_from(
    (b"content-type: application/json", b"content-type: text/event-stream", b"content-type: text/html",
     b"content-length: 3", b"content-length: 0", b"content-length: -1", b"content-length: 99",
     b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked", b"content-encoding: gzip",
     b"connection: close", b"connection: keep-alive, x", b"retry-after: 1", b"retry-after: soon",
     b"set-cookie: a=\xff", b"x-request-id: y", b"trailer: x", b"upgrade: h2c", b"location: /x", b": x", b"x")
)  # fmt: skip
EVENT = st.sampled_from(
    (token("x"), token("\ud800"), DONE, usage_chunk(9, 1, 0), b"data: {", b"data: []\n\n", b": hm\n\n",
     b"\n\n", b'data: {"usage": 7}\n\n', b'data: {"usage": {"prompt_tokens": "x"}}\n\n',
     b"event: error\ndata: 1\n\n",
     b'data: {"error": {"message": "no"}}\n\n', b"\xff\xfe", b"data: " + b"9" * 5000 + b"\n\n")
)  # fmt: skip
WHOLE = st.sampled_from(
    (b"{}", b"[]", b'{"usage": {"prompt_tokens": -1, "completion_tokens": 1e99}}', b'{"usage": []}', b"{",
     b'{"usage": {"prompt_tokens": 9, "completion_tokens": 9, "prompt_tokens_details": 3}}', b"\x00" * 99,
     b'{"kv_transfer_params": {"a": 1}, "b": "\\ud800"}', b"abc", b"")
)  # fmt: skip
BODY = st.lists(EVENT | WHOLE | EVENT.map(chunk) | WHOLE.map(chunk) | st.binary(max_size=50), max_size=5).map(
    b"".join
)


@pytest.mark.timeout(900)
def test_answers_of_any_kind(spawn: Spawn, free_port: Callable[[], int]) -> None:
    script: list[bytes] = [b""]

    async def plays(turn: Turn) -> None:
        await turn.write(script[0])
        turn.close()

    with Loop() as loop:
        engine = FaultyEngine(plays, model="m")
        loop.run(engine.__aenter__())
        port, admin = free_port(), free_port()
        process = spawn(
            "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin), "--no-access-log",
            "--worker", engine.url, "--tokenizer", "m=bytes",
            env={"GATEWAY_BREAKER_FAILURES": "1000000", "GATEWAY_EJECT_MOST": "0"},
        )  # fmt: skip
        process.wait_http(f"http://127.0.0.1:{port}/ready", timeout=100)
        door = Door(process, port, f"http://127.0.0.1:{admin}")

        @settings(max_examples=600, **ODD)
        @given(
            path=st.sampled_from(("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")),
            stream=st.booleans(), status=STATUS, heads=st.lists(HEAD, max_size=4), body=BODY,
            ends=st.booleans(),
        )  # fmt: skip
        def probe(path: str, stream: bool, status: int, heads: list[bytes], body: bytes, ends: bool) -> None:
            script[0] = b"\r\n".join([b"HTTP/1.1 %d X" % status, *heads, b"", body])
            script[0] += b"0\r\n\r\n" if ends else b""
            asked = json.dumps(
                {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            )
            answer = talk(port, post(path, asked.encode()), stays=True)
            # its own status, or that it can't be read; 429 where it is busy
            assert status_of(answer) in (status, 502, 429), (script[0], answer)

        try:
            probe()
            door.assert_sound()
        finally:
            loop.run(engine.__aexit__(None, None, None))
