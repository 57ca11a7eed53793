"""Reads logs of requests: JSON lines with OpenAI bodies, or traces that name blocks and hold no text."""

from __future__ import annotations

import codecs
import gzip
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, cast

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.diagnosis.divergence import Head, head_of
from gateway.errors import ConfigError
from gateway.kv.keys import BLOCK_SIZE, block_keys, cacheable_blocks, pack_tokens, root_key
from gateway.prompt.approx import BytesEncoder
from gateway.prompt.base import Endpoint, PromptEncoder
from gateway.prompt.reader import read_prompt
from gateway.types import BlockKey, CacheScope

TRACE_BLOCK = 512
"""Tokens that one id of a Mooncake trace stands for, where the line does not say."""
_ID_BITS = 127
"""Of an id, without its sign."""
_GZIP = b"\x1f\x8b"
_WRAPPERS = ("body", "request", "request_body")
_ANTHROPIC = ("tool_use", "tool_result", "thinking", "redacted_thinking")
"""Kinds of blocks that Anthropic's messages alone have."""


@dataclass(frozen=True, slots=True)
class LoggedPrompt:
    """One prompt of the log. No text is kept."""

    keys: tuple[BlockKey, ...]
    """Of the blocks that a cache can serve."""
    tokens: int
    block_size: int
    head: Head | None
    """None where the log holds no text."""


async def read_log(
    lines: Iterable[bytes], encoder: PromptEncoder, salt: int
) -> tuple[list[LoggedPrompt], int]:
    """The prompts of a log, in order, and how many lines are no requests."""
    found: list[LoggedPrompt] = []
    unread = 0
    for line in lines:
        if line.strip():
            prompts = await _read(line, encoder, salt)
            found += prompts
            unread += not prompts
    return found, unread


async def _read(line: bytes, encoder: PromptEncoder, salt: int) -> list[LoggedPrompt]:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if not isinstance(record, dict):
        return []
    if isinstance(record.get("hash_ids"), list):
        return _traced(record)
    if isinstance(record.get("requests"), list):
        return _session(record)
    body = next((record[name] for name in _WRAPPERS if isinstance(record.get(name), dict)), record)
    endpoint = _endpoint(record, body)
    if endpoint is None:
        return []
    request = read_prompt(endpoint, body)
    scope = CacheScope(request.model, "", request.salt)
    from_bytes = encoder.name == BytesEncoder.name
    return [_keyed(prompt.tokens, scope, salt, from_bytes) for prompt in await encoder.encode(request)]


def _endpoint(record: Mapping[str, Any], body: Mapping[str, Any]) -> Endpoint | None:
    """What the line says (`url` of a batch file, `path` of a log), or what the body can only be meant for.
    None where the line names another path: embeddings, say."""
    said = str(record.get("url") or record.get("path") or record.get("endpoint") or "")
    for endpoint in Endpoint:
        if said.partition("?")[0].endswith(endpoint.value):
            return endpoint
    if said.startswith("/"):
        return None
    if "messages" in body:
        return Endpoint.MESSAGES if _is_anthropic(body) else Endpoint.CHAT
    return Endpoint.RESPONSES if "input" in body else Endpoint.COMPLETIONS


def _is_anthropic(body: Mapping[str, Any]) -> bool:
    """Told by fields that OpenAI's chat has not: a system prompt beside the messages, and its kinds of
    blocks."""
    if "system" in body or "anthropic_version" in body:
        return True
    messages = body["messages"] if isinstance(body["messages"], list) else []
    contents = [one.get("content") for one in messages if isinstance(one, dict)]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return any(isinstance(block, dict) and block.get("type") in _ANTHROPIC for block in blocks)


def _keyed(tokens: array[int], scope: CacheScope, salt: int, from_bytes: bool) -> LoggedPrompt:
    keys = block_keys(root_key(scope), pack_tokens(tokens), max_blocks=cacheable_blocks(len(tokens)))
    return LoggedPrompt(tuple(keys), len(tokens), BLOCK_SIZE, head_of(tokens, salt, from_bytes=from_bytes))


def _session(record: dict[str, Any]) -> list[LoggedPrompt]:
    """One line with all requests of a session, in turn; ids of blocks are the session's own unless it says
    that they are global."""
    scope = "" if record.get("hash_id_scope") == "global" else str(record.get("id", ""))
    salt = xxh3_64_intdigest(scope) if scope else 0
    shared = {"block_size": record["block_size"]} if "block_size" in record else {}
    found: list[LoggedPrompt] = []
    for one in record["requests"]:
        if isinstance(one, dict) and isinstance(one.get("hash_ids"), list):
            length = one.get("input_length", one.get("in", 0))
            found += _traced({**shared, **one, "input_length": length}, salt)
    return found


def _traced(record: Mapping[str, Any], salt: int = 0) -> list[LoggedPrompt]:
    """Mooncake's form: an id names a block and all before it, so it is a key already."""
    ids, tokens = record["hash_ids"], record.get("input_length", 0)
    size = record.get("block_size", TRACE_BLOCK)
    if not all(isinstance(one, int) for one in (*ids, tokens, size)) or size < 1 or tokens < 0:
        return []
    if any(one.bit_length() > _ID_BITS for one in ids):
        return []
    whole = min(len(ids), cacheable_blocks(tokens, size))
    keys = (BlockKey(xxh3_64_intdigest(one.to_bytes(16, "little", signed=True), salt)) for one in ids[:whole])
    return [LoggedPrompt(tuple(keys), tokens, size, None)]


def records_of(path: Path | None) -> Iterator[bytes]:
    """One JSON value each, of lines or of one array. Raises ConfigError."""
    lines = lines_of(path)
    first = next((line for line in lines if line.strip()), b"")
    if not first.lstrip().startswith(b"["):
        yield first
        yield from lines
        return
    whole = first + b"".join(lines)
    try:
        yield from map(bytes, msgspec.json.decode(whole, type=list[msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # a line that happens to begin so
        yield from whole.splitlines()


def lines_of(path: Path | None) -> Iterator[bytes]:
    """Of a file, plain or gzip, or of stdin for None; without the mark of UTF-8 that some editors put first.
    Raises ConfigError."""
    try:
        with nullcontext(sys.stdin.buffer) if path is None else path.open("rb") as file:
            # a pipe can't be read again from its start, so it is only looked at
            ahead = BufferedReader(cast(RawIOBase, file))
            packed = ahead.peek(len(_GZIP)).startswith(_GZIP)
            try:
                lines: Iterator[bytes] = iter(gzip.GzipFile(fileobj=ahead) if packed else ahead)
                yield next(lines, b"").removeprefix(codecs.BOM_UTF8)
                yield from lines
            finally:
                # or it would close stdin
                ahead.detach()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path or 'stdin'}: {error}") from error
