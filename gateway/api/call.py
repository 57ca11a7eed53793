"""A client's request, understood: what is asked of the router, and what goes to a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from gateway.api.body import (
    Fields,
    append_field,
    decode_body,
    edit_object,
    multipart_model,
    parse_long,
    parse_object,
    parsed,
    says_once,
    says_twice,
    with_multipart_model,
)
from gateway.api.door import Door
from gateway.api.endpoints import ProxiedEndpoint
from gateway.api.form import FormKind, form_kind, judge_form
from gateway.api.head_reading import HeadReading
from gateway.api.json_bound import MOST_PARTS
from gateway.errors import InvalidRequest
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.routing.caller import Caller
from gateway.upstream.redact import Redactor

ReadPrompt: TypeAlias = Callable[[Endpoint, Any], PromptRequest]

_ANYBODY = Caller()
_LONG = 1024 * 1024


class Call(msgspec.Struct):
    endpoint: ProxiedEndpoint
    head: HeadReading
    body: bytes
    """Decoded. A form is without what the door took out; JSON says each of its names once."""
    fields: Fields | None
    """The body where it is a JSON object."""
    prompt: PromptRequest
    dropped_fields: list[str]
    dropped_headers: list[bytes]
    dropped_entries: list[str]
    """The door's entries that these headers fell under."""
    inject_usage: bool
    """Usage is asked for on our own behalf, and its chunk kept from the client."""
    redactor: Redactor
    """Takes out of answers what must not leave."""
    caller: Caller = _ANYBODY
    form_salts: tuple[str, ...] = ()
    """Each `cache_salt` of a form."""
    imposed: dict[str, object] = msgspec.field(default_factory=dict)
    """Fields that the gateway sets, whatever the client said."""
    _bodies: dict[str, bytes] = msgspec.field(default_factory=dict)

    @property
    def stripped(self) -> tuple[str, ...]:
        return (*self.dropped_fields, *self.dropped_entries)

    def body_for(self, model: str) -> bytes:
        """What goes to a worker that calls the model `model`. Only what must change does."""
        asked = self.prompt.model
        if not (self.imposed or self.inject_usage or self.dropped_fields) and (asked == model or not asked):
            return self.body
        body = self._bodies.get(model)
        if body is None:
            body = self._bodies[model] = self._edited(model)
        return body

    def _edited(self, model: str) -> bytes:
        asked = self.prompt.model
        renamed = bool(asked and model) and asked != model
        if self.fields is None:
            return with_multipart_model(self.body, model) if renamed else self.body
        put = {**self.imposed, "model": model} if renamed else dict(self.imposed)
        options = self.fields.get("stream_options")
        if self.inject_usage:
            if not put and not self.dropped_fields and "stream_options" not in self.fields:
                return append_field(self.body, "stream_options", {"include_usage": True})
            put["stream_options"] = {**(options or {}), "include_usage": True}
        if not put and not self.dropped_fields:
            return self.body
        return edit_object(self.body, drop=self.dropped_fields, put=put)


async def understand(
    endpoint: ProxiedEndpoint,
    head: HeadReading,
    body: bytes,
    *,
    door: Door,
    read_prompt: ReadPrompt,
    max_body: int,
    ask_for_usage: bool,
) -> Call:
    """Raises ClientError for what no worker should see: broken JSON, unknown encodings, fields that the door
    refuses."""
    lookup = head.lookup
    encoding = lookup.get(b"content-encoding")
    if encoding is not None and body:
        body = await decode_body(body, encoding, max_body)
    fields: Fields | None
    if len(body) > _LONG:
        fields = await _long_fields(endpoint, lookup, body)
    elif endpoint.prompt is not None:
        fields = parsed(body) if len(body) <= MOST_PARTS else parse_object(body)
    else:
        fields = _fields(endpoint, lookup, body)
    dropped: list[str] = []
    salts: tuple[str, ...] = ()
    kind = None if head.no_form else form_kind(head.headers)
    if fields is not None:
        dropped, doubtful = door.judged(body, fields)
        if doubtful or (not says_once(body, fields) and says_twice(body)):
            body = edit_object(body, drop=[*dropped, *doubtful])
        if kind is FormKind.URLENCODED and _speaks_as_a_form(body, kind, door):
            raise InvalidRequest("the request's body can be read as JSON and as a form")
    elif kind is not None:
        judged = judge_form(body, kind, lookup[b"content-type"], door)
        body, dropped, salts = judged.body, judged.dropped, judged.salts
    if endpoint.prompt is not None:
        prompt = read_prompt(endpoint.prompt, fields)
    else:
        prompt = _promptless(fields, body if kind is FormKind.MULTIPART else b"")
    options = fields.get("stream_options") if fields is not None else None
    inject = (
        prompt.stream
        and ask_for_usage
        and endpoint.prompt is not None
        and not prompt.include_usage
        and (options is None or isinstance(options, dict))
    )
    steering = head.steering(door)
    return Call(
        endpoint=endpoint,
        head=head,
        body=body,
        fields=fields,
        prompt=prompt,
        dropped_fields=dropped,
        dropped_headers=steering,
        dropped_entries=[door.listed_as(name) for name in steering] if steering else [],
        inject_usage=inject,
        redactor=door.redactor,
        form_salts=salts,
    )


def _speaks_as_a_form(body: bytes, kind: FormKind, door: Door) -> bool:
    """Whether JSON, read as a form, says what has to be judged."""
    judged = judge_form(body, kind, b"", door)
    return bool(judged.dropped or judged.salts)


def _fields(endpoint: ProxiedEndpoint, headers: Mapping[bytes, bytes], body: bytes) -> Fields | None:
    if _is_json(endpoint, headers, body):
        return parse_object(body)
    if body.lstrip()[:1] != b"{":
        return None
    # not called JSON, but an engine may still read it so, and the door must see what the engine sees
    try:
        return parse_object(body)
    except InvalidRequest:
        return None


async def _long_fields(
    endpoint: ProxiedEndpoint, headers: Mapping[bytes, bytes], body: bytes
) -> Fields | None:
    """The same, in steps."""
    must = _is_json(endpoint, headers, body)
    if not must and body.lstrip()[:1] != b"{":
        return None
    try:
        return await parse_long(body)
    except InvalidRequest:
        if must:
            raise
        return None


def _is_json(endpoint: ProxiedEndpoint, headers: Mapping[bytes, bytes], body: bytes) -> bool:
    if endpoint.prompt is not None:
        return True
    return bool(body) and b"json" in headers.get(b"content-type", b"").lower()


def _promptless(fields: Fields | None, form: bytes) -> PromptRequest:
    """Of an endpoint whose requests go by load alone."""
    if fields is None:
        return PromptRequest(Endpoint.CHAT, multipart_model(form))
    model = fields.get("model")
    return PromptRequest(
        Endpoint.CHAT, model if isinstance(model, str) else "", stream=fields.get("stream") is True
    )
