"""A request's body: read within bounds, understood, and edited without touching what need not change."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias

import msgspec

from gateway.api.json_bound import check_parsing, check_parsing_in_steps, check_slow_parsing
from gateway.errors import BodyTooLarge, InvalidRequest, RequestTimeout, UnsupportedEncoding
from gateway.upstream.redact import encode_members

Fields: TypeAlias = dict[str, Any]

_NAME = re.compile(rb'[ \t\r\n]*[{,][ \t\r\n]*"[^"\\]*(?:\\.[^"\\]*)*"[ \t\r\n]*:[ \t\r\n]*')
_ESCAPED = b"\\u"
_FEW, _SHORT = 24, 4096
"""Names, each of which is searched for in the whole body, and bytes of it: more are read sooner."""
_CLOSE = re.compile(rb"[ \t\r\n]*\}")
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INFLATE_HERE = 256 * 1024
_GZIP = (b"gzip", b"x-gzip")
_PIECE = 64 * 1024
_MOST_MEMBERS = 4096
"""Of a gzip body: each costs some work of its own, however little is in it."""
_MODEL_PART = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n')


class ClientLeft(Exception):
    """The client went away before its request was whole."""


async def read_body(receive: Callable[[], Awaitable[Any]], limit: int, timeout: float) -> bytes:
    """The whole body. `timeout` in seconds, until its last byte, also for one that never begins.

    Raises BodyTooLarge, RequestTimeout or ClientLeft.
    """
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(timeout):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise BodyTooLarge(f"the request's body has more than {limit} bytes")
                parts.append(part)
                more = message.get("more_body", False)
    except TimeoutError as error:
        raise RequestTimeout(f"the request's body did not arrive within {timeout:g} s") from error
    return b"".join(parts)


def check_length(declared: bytes | None, limit: int) -> None:
    """`declared` is the request's ``Content-Length``: what can't be taken is refused before it is sent.

    Raises BodyTooLarge."""
    if declared is not None and declared.isdigit() and int(declared[:20]) > limit:
        raise BodyTooLarge(f"the request's body has more than {limit} bytes")


def within(body: bytes, limit: int) -> bytes:
    """`body` itself. Raises BodyTooLarge."""
    if len(body) > limit:
        raise BodyTooLarge(f"the request's body has more than {limit} bytes")
    return body


async def decode_body(body: bytes, encoding: bytes, limit: int) -> bytes:
    """`body` without its ``Content-Encoding``: engines do not take compressed requests, and fields that must
    not reach them could hide in one. Raises UnsupportedEncoding, InvalidRequest or BodyTooLarge."""
    names = [name.strip().lower() for name in encoding.split(b",")]
    for name in reversed(names):
        if name in (b"", b"identity"):
            continue
        if name not in (*_GZIP, b"deflate"):
            raise UnsupportedEncoding(f"content-encoding {name.decode('latin-1')!r} is not understood")
        if len(body) <= _INFLATE_HERE:
            body = _inflate(body, name, limit)
        else:
            body = await asyncio.to_thread(_inflate, body, name, limit)
    return body


def _inflate(body: bytes, name: bytes, limit: int) -> bytes:
    # 32: a gzip or a zlib head; -15: the bare deflate that some clients send under the name
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        inflater = zlib.decompressobj(window)
        try:
            plain = inflater.decompress(body, limit + 1)
        except zlib.error:
            continue
        if len(plain) > limit:
            raise BodyTooLarge(f"the request's body has more than {limit} bytes when decompressed")
        if inflater.eof and not inflater.unused_data:
            return plain
        if inflater.eof and name in _GZIP:
            return plain + _inflate_more(body, len(body) - len(inflater.unused_data), len(plain), limit)
        break
    raise InvalidRequest(f"the request's body is not valid {name.decode()}")


def _inflate_more(body: bytes, at: int, size: int, limit: int) -> bytes:
    """The members of a gzip file behind its first (RFC 1952, section 2.2), from `at`; the first held `size`
    bytes. In pieces, since what a member leaves is copied."""
    parts: list[bytes] = []
    for _ in range(_MOST_MEMBERS - 1):
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        while not inflater.eof:
            piece = body[at : at + _PIECE]
            try:
                part = inflater.decompress(piece, limit - size + 1)
            except zlib.error:
                part = None
            if part is None or not piece:
                raise InvalidRequest("the request's body is not valid gzip")
            parts.append(part)
            size += len(part)
            if size > limit:
                raise BodyTooLarge(f"the request's body has more than {limit} bytes when decompressed")
            at += len(piece) - len(inflater.unused_data)
        if at == len(body):
            return b"".join(parts)
    raise InvalidRequest(f"the request's body has more than {_MOST_MEMBERS} gzip members")


def parse_object(body: bytes) -> Fields:
    """Raises InvalidRequest that says what is wrong and where, or BodyTooLarge where parsing would take long.

    What Python's own parser takes is taken (NaN, lone surrogates…), for that is what engines parse with.
    """
    check_parsing(body)
    return parsed(body)


async def parse_long(body: bytes) -> Fields:
    """The same in steps, but for parsing itself, for which its bounds are."""
    await check_parsing_in_steps(body)
    fields = parsed(body)
    await asyncio.sleep(0)
    return fields


def parsed(body: bytes) -> Fields:
    """The same of a body that is not too long to be parsed."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        value = _parse_leniently(body)
    if not isinstance(value, dict):
        raise InvalidRequest("the request's body must be a JSON object")
    return value


def _parse_leniently(body: bytes) -> Any:
    if not body.strip():
        raise InvalidRequest("the request's body is empty, where a JSON object is needed")
    check_slow_parsing(body)
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the request's body is not valid UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"the request's body is not valid JSON: {error.msg} ({where})") from None
    except RecursionError:
        raise InvalidRequest("the request's body is nested too deeply") from None
    except ValueError:
        # the one thing that Python refuses of good JSON
        raise InvalidRequest("the request's body has a number of too many digits") from None


def says_once(body: bytes, names: Collection[str]) -> bool:
    """Whether `body`, a JSON object with members of these `names`, plainly has one of each: nothing else in
    it is spelt so, or could be in another way. Where not, `says_twice` has to read it again."""
    if len(names) > _FEW or len(body) > _SHORT:
        return False
    for name in names:
        if not name.isidentifier() or body.count(b'"%s"' % name.encode()) != 1:
            return False
    return body.find(_ESCAPED) < 0


def says_twice(body: bytes) -> bool:
    """Whether `body`, a JSON object, has two members of one name. The last was judged, and what engines are
    made with may take the first."""
    try:
        members = _members.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _says_twice_leniently(body)
    if not members:
        return False
    # two quotes, a colon and a comma each: nothing is left for a member more, or for a space
    spaces = len(body) - 1 - 4 * len(members) - sum(map(len, members)) - sum(map(len, members.values()))
    if not spaces:
        return False
    if spaces == 2 * len(members) - 1:  # as Python's own library writes it
        pairs = [b'"%s": %s' % pair for pair in zip(map(str.encode, members), members.values(), strict=True)]
        if body == b"{%s}" % b", ".join(pairs):
            return False
    at = body.find(b"{")
    for value in members.values():
        name = _NAME.match(body, at)
        if name is None or not body.startswith(value, name.end()):
            return True
        at = name.end() + len(value)
    return _CLOSE.match(body, at) is None


def _says_twice_leniently(body: bytes) -> bool:
    twice = False

    def judge(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        members = dict(pairs)
        twice = len(members) < len(pairs)  # the outermost object is the last to be read
        return members

    json.loads(body, object_pairs_hook=judge)
    return twice


def edit_object(body: bytes, *, drop: Collection[str] = (), put: Mapping[str, object] | None = None) -> bytes:
    """`body`, a JSON object, without the fields `drop` (``a.b`` is field b of the object a) and with the
    fields `put`. Every other value keeps its bytes."""
    put = put or {}
    try:
        members = _members.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _edit_leniently(body, drop, put)
    for name in drop:
        _drop(members, name)
    for name, value in put.items():
        members[name] = msgspec.Raw(msgspec.json.encode(value))
    return encode_members(members)


def _drop(members: dict[str, msgspec.Raw], name: str) -> None:
    members.pop(name, None)
    outer, dot, inner = name.partition(".")
    if dot and outer in members:
        try:
            nested = _members.decode(members[outer])
        except msgspec.DecodeError:
            return
        _drop(nested, inner)
        members[outer] = msgspec.Raw(encode_members(nested))


def _edit_leniently(body: bytes, drop: Collection[str], put: Mapping[str, object]) -> bytes:
    """For the JSON that only Python's own parser takes: values stay the same, their bytes may not."""
    fields = json.loads(body)
    for name in drop:
        *path, last = [name] if name in fields else name.split(".")
        target: Any = fields
        for step in path:
            target = target.get(step) if isinstance(target, dict) else None
        if isinstance(target, dict):
            target.pop(last, None)
    return json.dumps({**fields, **put}, separators=(",", ":")).encode()


def append_field(body: bytes, name: str, value: object) -> bytes:
    """`body`, a JSON object that has members and no field `name`, with it at the end: no byte of it moves."""
    head = body.rstrip()[:-1]
    return b"%s,%s:%s}" % (head, msgspec.json.encode(name), msgspec.json.encode(value))


def multipart_model(body: bytes) -> str:
    """The ``model`` field of a form with files; empty where there is none."""
    found = _MODEL_PART.search(body)
    return found[1].decode("utf-8", "replace") if found else ""


def with_multipart_model(body: bytes, model: str) -> bytes:
    found = _MODEL_PART.search(body)
    return body if found is None else body[: found.start(1)] + model.encode() + body[found.end(1) :]
