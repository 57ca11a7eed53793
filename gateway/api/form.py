"""What a form must not say, taken out of it: every other byte stays.

The names of a part are read as engines read them (Starlette, with the standard library's header parser). A
form that two parsers could read in two ways is refused, for the door would judge one and the engine obey the
other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from enum import Enum
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from gateway.api.body import edit_object, parse_object
from gateway.api.door import Door
from gateway.errors import InvalidRequest
from gateway.upstream.headers import Headers

MAX_PARTS = 256
MAX_PAIRS = 1000
SALT = "cache_salt"
_MAX_HEAD = 4096
_MAX_OPTIONS = 32
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


class FormKind(Enum):
    MULTIPART = "multipart/"
    URLENCODED = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Judged:
    """A form as it may go on, the names of what the door took out of it, and each `cache_salt` in it."""

    body: bytes
    dropped: list[str]
    salts: tuple[str, ...] = ()


def form_kind(headers: Headers) -> FormKind | None:
    """Raises InvalidRequest where one header says so and another does not."""
    kinds = [value.strip().lower().decode("latin-1") for name, value in headers if name == b"content-type"]
    forms = [form for form in FormKind for kind in kinds if kind.startswith(form.value)]
    if forms and len(kinds) > 1:
        raise InvalidRequest("a form needs one content-type")
    return forms[0] if forms else None


def judge_form(body: bytes, kind: FormKind, content_type: bytes, door: Door) -> Judged:
    """A part is a field, its name a path (``a.b``, ``a[b]``); fields inside JSON count too.

    Raises InvalidRequest where the door refuses, and for forms with more than one reading.
    """
    if kind is FormKind.URLENCODED:
        return _judge_pairs(body, door)
    if not door.body_fields and body.find(SALT.encode()) < 0:
        return Judged(body, [])
    delimiter = b"--" + _boundary(content_type)
    pieces = _split(body, delimiter)
    kept, dropped = [pieces[0]], []
    salts = []
    for piece in pieces[1:-1]:
        head, content = _part(piece)
        name = _name(head)
        if name == SALT:
            salts.append(content.decode("utf-8", "replace"))
        found, left = _judge_field(name, content, door)
        dropped += found
        if not found:
            kept.append(piece)
        elif left is not None:
            kept.append(b"\r\n%s\r\n\r\n%s\r\n" % (head, left))
    if dropped:
        body = delimiter.join([*kept, pieces[-1]])
    return Judged(body, dropped, tuple(salts))


def _judge_pairs(body: bytes, door: Door) -> Judged:
    """Of a form like a query. Some parsers end a pair at ``;`` too: so do we."""
    pieces = re.split(rb"([&;])", body, maxsplit=MAX_PAIRS)
    if len(pieces) > 2 * MAX_PAIRS:
        raise InvalidRequest(f"the form has more than {MAX_PAIRS} fields")
    kept: list[bytes] = []
    dropped: list[str] = []
    salts: list[str] = []
    for before, piece in zip([b"", *pieces[1::2]], pieces[::2], strict=True):
        name, _, value = (_unquoted(half) for half in piece.partition(b"="))
        if name == SALT:
            salts.append(value)
        found, left = _judge_field(name, value.encode("utf-8", "surrogateescape"), door)
        dropped += found
        if not found:
            kept += before, piece
        elif left is not None:
            kept += before, piece.partition(b"=")[0] + b"=" + quote_plus(left).encode()
    return Judged(b"".join(kept[1:]) if dropped else body, dropped, tuple(salts))


def _unquoted(text: bytes) -> str:
    return unquote_plus(text.decode("utf-8", "surrogateescape"), errors="surrogateescape")


def _judge_field(name: str, content: bytes, door: Door) -> tuple[list[str], bytes | None]:
    """What the door takes out of one field, and what is left of `content`: None where all of it goes."""
    path = [step for step in re.split(r"[.\[\]]", name) if step] or [""]
    found = door.fields_in(_as_fields(path, content))
    inner = [one[len(path[0]) + 1 :] for one in found if len(path) == 1 and one != path[0]]
    return found, edit_object(content, drop=inner) if found and len(inner) == len(found) else None


def _boundary(content_type: bytes) -> bytes:
    options = _options(content_type)
    found = options.get("boundary", "")
    if not isinstance(found, str) or not _BOUNDARY.fullmatch(found):
        raise InvalidRequest("the form's content-type needs one plain boundary")
    charset = options.get("charset", "utf-8")
    if not isinstance(charset, str) or charset.lower() not in ("utf-8", "us-ascii"):
        raise InvalidRequest("the form's charset must be utf-8")
    return found.encode("ascii")


def _options(value: bytes) -> Mapping[str, Any]:
    """Options of a header. Those that stand there twice, or in the forms of RFC 2231, are no text."""
    if value.count(b";") > _MAX_OPTIONS:
        # the library's parser takes time that grows with their square
        raise InvalidRequest("the form has a header with too many options")
    message = Message()
    message["content-type"] = value.decode("latin-1")
    options: dict[str, Any] = {}
    for name, text in message.get_params([]):
        options[name.lower()] = None if name.lower() in options else text
    return options


def _split(body: bytes, delimiter: bytes) -> list[bytes]:
    """What stands before, between and behind the delimiters, which begin lines."""
    pieces, start, at = [], 0, body.find(delimiter)
    while at >= 0:
        if at == 0 or body[at - 1] in b"\r\n":
            pieces.append(body[start:at])
            start = at + len(delimiter)
            if len(pieces) > MAX_PARTS + 1:
                raise InvalidRequest(f"the form has more than {MAX_PARTS} parts")
        at = body.find(delimiter, at + len(delimiter))
    pieces.append(body[start:])
    if len(pieces) < 2 or pieces[0].strip(b"\r\n") or not re.match(rb"--(\r\n|\Z)", pieces[-1]):
        raise InvalidRequest("the form does not begin and end with its boundary")
    return pieces


def _part(piece: bytes) -> tuple[bytes, bytes]:
    head, blank, content = piece[2:-2].partition(b"\r\n\r\n")
    if not blank or len(head) > _MAX_HEAD or not piece.startswith(b"\r\n") or not piece.endswith(b"\r\n"):
        raise InvalidRequest(f"the form has a part without a head of at most {_MAX_HEAD} bytes")
    return head, content


def _name(head: bytes) -> str:
    dispositions = []
    for line in head.split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None:
            raise InvalidRequest("the form has a part with a malformed head")
        if header[1].lower() == b"content-disposition":
            dispositions.append(header[2])
    if len(dispositions) != 1 or re.search(rb";\s*name\*", dispositions[0], re.IGNORECASE):
        raise InvalidRequest("each part of a form needs one plain name")
    name = _options(dispositions[0]).get("name")
    if not isinstance(name, str) or "\\" in name:
        raise InvalidRequest("each part of a form needs one plain name")
    return name.encode("latin-1").decode("utf-8", "replace")


def _as_fields(path: list[str], content: bytes) -> dict[str, Any]:
    value: Any = ""
    if content.lstrip()[:1] == b"{":
        try:
            value = parse_object(content)
        except InvalidRequest:
            # no engine reads it as an object either
            value = ""
    for step in reversed(path):
        value = {step: value}
    return dict(value)
