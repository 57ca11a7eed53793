"""What a stream says is the same however its bytes are cut."""

from __future__ import annotations

import json

import pytest

from gateway.errors import UpstreamProtocolError
from gateway.types import Usage
from gateway.upstream.redact import Redactor
from gateway.upstream.sse import SseScanner
from gateway.upstream.usage import read_usage

DONE = b"data: [DONE]\n\n"


def chunk(text: str, **more: object) -> bytes:
    value = {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


USAGE = (
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":131,"total_tokens":135,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":128}}}\n\n'
)
STREAM = chunk("Grüße") + chunk("日本 🎈") + chunk("!", usage=None) + USAGE + DONE
EXPECTED = Usage(prompt_tokens=131, completion_tokens=4, cached_tokens=128)


def run(scanner: SseScanner, pieces: list[bytes]) -> bytes:
    return b"".join([*(scanner.feed(piece) for piece in pieces), scanner.end()])


def test_every_cut_in_two_gives_the_same() -> None:
    for cut in range(len(STREAM) + 1):
        scanner = SseScanner()
        assert run(scanner, [STREAM[:cut], STREAM[cut:]]) == STREAM
        assert (scanner.events, scanner.usage, scanner.done, scanner.error) == (4, EXPECTED, True, False), cut


def test_byte_by_byte_gives_the_same() -> None:
    scanner = SseScanner()
    assert run(scanner, [STREAM[i : i + 1] for i in range(len(STREAM))]) == STREAM
    assert (scanner.events, scanner.usage, scanner.done) == (4, EXPECTED, True)


def test_the_usage_chunk_is_kept_back_at_every_cut() -> None:
    wanted = STREAM.replace(USAGE, b"")
    for cut in range(len(STREAM) + 1):
        scanner = SseScanner(hide_usage=True)
        assert run(scanner, [STREAM[:cut], STREAM[cut:]]) == wanted, cut
        assert (scanner.events, scanner.usage, scanner.done) == (3, EXPECTED, True)


def test_a_usage_beside_choices_is_not_kept_back() -> None:
    stream = chunk("a", usage={"prompt_tokens": 3, "completion_tokens": 1}) + DONE
    scanner = SseScanner(hide_usage=True)
    assert run(scanner, [stream]) == stream
    assert scanner.usage == Usage(3, 1, None)


def test_zero_cached_tokens_are_not_lost() -> None:
    scanner = SseScanner()
    scanner.feed(USAGE.replace(b":128", b":0"))
    assert scanner.usage == Usage(131, 4, 0)


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_other_line_ends(newline: bytes) -> None:
    stream = STREAM.replace(b"\n", newline)
    for cut in range(len(stream) + 1):
        scanner = SseScanner(hide_usage=True)
        out = run(scanner, [stream[:cut], stream[cut:]])
        assert out == stream.replace(USAGE.replace(b"\n", newline), b""), cut
        assert (scanner.events, scanner.usage, scanner.done) == (3, EXPECTED, True)


def test_comments_names_and_several_data_lines() -> None:
    stream = (
        b": keep-alive\n\n"
        b'event: delta\nid: 7\ndata: {"choices":[],\ndata: "usage":{"prompt_tokens":5,\n'
        b'data:"completion_tokens":2}}\n\n'
        b"retry: 10\n\n\n\ndata:[DONE]\n\n"
    )
    for cut in range(len(stream) + 1):
        scanner = SseScanner()
        assert run(scanner, [stream[:cut], stream[cut:]]) == stream
        assert (scanner.events, scanner.usage, scanner.done) == (1, Usage(5, 2, None), True), cut


def test_text_that_looks_like_markers_is_only_text() -> None:
    stream = chunk('data: [DONE] "usage":{"prompt_tokens":1} "error"\n\ndata: x') + DONE
    scanner = SseScanner(hide_usage=True)
    assert run(scanner, [stream]) == stream
    assert (scanner.events, scanner.usage, scanner.error) == (1, None, False)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}\n\n',
        b'data: {"object":"error","message":"engine died","code":500}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n',
    ],
)
def test_an_error_inside_the_stream_is_recognised(event: bytes) -> None:
    scanner = SseScanner()
    assert run(scanner, [chunk("a"), event]) == chunk("a") + event
    assert scanner.error


def test_half_an_event_is_never_forwarded() -> None:
    scanner = SseScanner()
    assert scanner.feed(chunk("a") + b'data: {"choi') == chunk("a")
    assert scanner.held_bytes == 12


def test_a_last_event_without_its_blank_line_is_forwarded_at_the_end() -> None:
    scanner = SseScanner()
    assert run(scanner, [chunk("a"), b"data: [DONE]\n"]) == chunk("a") + b"data: [DONE]\n"
    assert scanner.done


def test_an_event_without_end_is_refused() -> None:
    scanner = SseScanner(max_event=1000)
    scanner.feed(b"data: " + b"x" * 900)
    with pytest.raises(UpstreamProtocolError, match="more than 1000 bytes"):
        scanner.feed(b"x" * 900)


def test_transfer_fields_leave_an_event_and_nothing_else_does() -> None:
    leak = b'data: {"id":"c", "n":1.50,"kv_transfer_params":{"remote_block_ids":[1,2]},"choices":[]}\n\n'
    silent = b'data: {"id":"c","kv_transfer_params":null,"choices":[{"index":0}]}\n\n'
    scanner = SseScanner(redactor=Redactor(("kv_transfer_params", "ec_transfer_params")))
    assert run(scanner, [silent, leak]) == silent + b'data: {"id":"c","n":1.50,"choices":[]}\n\n'
    assert scanner.events == 2


@pytest.mark.parametrize("name", [rb"kv\u005ftransfer_params", rb"\u006B\u0076_transfer_param\u0073"])
def test_a_field_with_an_escaped_name_leaves_too(name: bytes) -> None:
    leak = b'data: {"id":"c","text":"\\u00e9\\u4e2d","%s":{"a":1}}\n\n' % name
    other = b'data: {"id":"c","text":"say \\"kv\\u005ftransfer_params\\" \\u00e9"}\n\n'
    scanner = SseScanner(redactor=Redactor(("kv_transfer_params", "ec_transfer_params")))
    assert run(scanner, [other, leak]) == other + b'data: {"id":"c","text":"\\u00e9\\u4e2d"}\n\n'
    assert scanner.events == 2


def test_many_events_in_one_read_are_all_counted() -> None:
    scanner = SseScanner()
    stream = b"".join(chunk(str(n)) for n in range(50))
    assert scanner.feed(stream) is stream
    assert scanner.events == 50


# -- streams of the Messages and Responses APIs: events as vLLM 0.32 sends them ------------------------------

MESSAGE_STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"c","type":"message","role":'
    b'"assistant","content":[],"model":"m","usage":{"input_tokens":35,"output_tokens":0,'
    b'"cache_read_input_tokens":96}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"hi"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"input_tokens":35,"output_tokens":4,"cache_read_input_tokens":96}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
RESPONSE_STREAM = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","usage":null}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","usage":'
    b'{"input_tokens":131,"input_tokens_details":{"cached_tokens":96},"output_tokens":4,"total_tokens":135}}}'
    b"\n\n"
)


@pytest.mark.parametrize("stream", [MESSAGE_STREAM, RESPONSE_STREAM], ids=["messages", "responses"])
def test_usage_inside_the_events_of_other_apis(stream: bytes) -> None:
    for cut in range(0, len(stream) + 1, 7):
        scanner = SseScanner()
        assert run(scanner, [stream[:cut], stream[cut:]]) == stream
        assert (scanner.usage, scanner.done, scanner.error) == (Usage(131, 4, 96), True, False), cut


def test_a_later_event_may_count_the_answer_alone() -> None:
    """Anthropic's own servers say the input once, at the start."""
    short = MESSAGE_STREAM.replace(
        b'"usage":{"input_tokens":35,"output_tokens":4', b'"usage":{"output_tokens":4'
    )
    scanner = SseScanner()
    run(
        scanner,
        [
            short.replace(
                b',"cache_read_input_tokens":96}}\n\nevent: message_stop', b"}}\n\nevent: message_stop"
            )
        ],
    )
    assert scanner.usage == Usage(131, 4, 96)


def test_a_response_that_failed_is_an_error() -> None:
    scanner = SseScanner()
    run(
        scanner,
        [b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"x"}}}\n\n'],
    )
    assert (scanner.done, scanner.error) == (True, True)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Messages: what came from cache is not in input_tokens; Responses: it is
        (b'{"usage":{"input_tokens":14,"output_tokens":4,"cache_creation_input_tokens":0,'
         b'"cache_read_input_tokens":80}}', Usage(94, 4, 80)),
        (b'{"usage":{"input_tokens":14,"output_tokens":4}}', Usage(14, 4, None)),
        (b'{"usage":{"input_tokens":94,"input_tokens_details":{"cached_tokens":80},"output_tokens":4}}',
         Usage(94, 4, 80)),
        (b'{"usage":{"prompt_tokens":94,"prompt_tokens_details":{"cached_tokens":0}}}', Usage(94, 0, 0)),
        (b'{"usage":{"prompt_tokens":94,"prompt_tokens_details":null}}', Usage(94, 0, None)),
        (b'{"usage":"none"}', None),
    ],
)  # fmt: skip
def test_usage_of_whole_answers(body: bytes, expected: Usage | None) -> None:
    assert read_usage(body) == expected


@pytest.mark.parametrize("nothing", [b'"usage":null', b'"usage": null'])
def test_a_usage_of_nothing_is_not_worth_reading(nothing: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(data: bytes) -> None:
        raise AssertionError("read")

    monkeypatch.setattr("gateway.upstream.sse.read_frame", never)
    scanner = SseScanner(hide_usage=True)
    event = b'data: {"choices":[{"delta":{"content":"a"}}],' + nothing + b"}\n\n"
    assert scanner.feed(event * 2) == event * 2
    assert (scanner.events, scanner.usage) == (2, None)
