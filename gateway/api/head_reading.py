"""What a request's head says, but for the length of its body. A client says the same each time: where its
connection knows the head, this is made once and looked up from then on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from gateway.api.direct import DirectOutlet
from gateway.api.door import Door
from gateway.api.headers import fit_id, lasting_headers, trace_id
from gateway.upstream.headers import Headers

_NOTE = "reading"
_NO_FORMS = frozenset((None, b"application/json"))
"""What nearly all say."""
_MOST = 16
"""Ways to write them for workers: as many as there are settings while one client speaks."""


class HeadReading(msgspec.Struct):
    headers: Headers
    """Of the first request that had them."""
    lookup: Mapping[bytes, bytes]
    """The first header of each name, without ``Content-Length``."""
    no_form: bool
    """One header says what the body is, or none does, and that it is no form."""
    given_id: bytes | None
    """What the client calls its request, where that is fit to be echoed."""
    trace_id: str
    method: bytes
    target: bytes
    """Path and query, as they go to a worker."""
    _door: Door | None = None
    _steering: list[bytes] = msgspec.field(default_factory=list)
    _written: dict[tuple[Any, ...], bytes] = msgspec.field(default_factory=dict)

    def steering(self, door: Door) -> list[bytes]:
        """Names of headers that `door` does not let pass. Raises InvalidRequest where it refuses."""
        if self._door is not door:
            self._steering = door.headers_in(self.headers)
            self._door = door
        return self._steering

    def for_workers(
        self,
        blocked: list[bytes],
        readable: bool,
        with_authorization: bool,
        own_authorization: bytes | None,
        traced: bool,
        via: bytes | None = None,
    ) -> bytes:
        """`lasting_headers`, as they go on the wire."""
        key = (readable, with_authorization, own_authorization, traced, via, *blocked)
        written = self._written.get(key)
        if written is None:
            headers = lasting_headers(
                self.headers, blocked=blocked, readable=readable, with_authorization=with_authorization,
                own_authorization=own_authorization, traced=traced, via=via,
            )  # fmt: skip
            if len(self._written) >= _MOST:
                self._written.clear()
            written = self._written[key] = b"".join([b"%s: %s\r\n" % header for header in headers])
        return written


def head_reading(scope: Any, direct: DirectOutlet | None) -> HeadReading:
    """Of the request that `scope` is of."""
    notes = None if direct is None else direct.notes
    if notes is None:
        return _read(scope)
    reading: HeadReading | None = notes.get(_NOTE)
    if reading is None:
        reading = notes[_NOTE] = _read(scope)
    return reading


def _read(scope: Any) -> HeadReading:
    headers: Headers = scope["headers"]
    lookup = dict(reversed(headers))
    no_form = len(lookup) == len(headers) and lookup.get(b"content-type") in _NO_FORMS
    lookup.pop(b"content-length", None)
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = path.removeprefix(scope.get("root_path", "").encode())
    query = scope.get("query_string", b"")
    return HeadReading(
        headers=headers,
        lookup=lookup,
        no_form=no_form,
        given_id=fit_id(lookup.get(b"x-request-id")),
        trace_id=trace_id(headers) if b"traceparent" in lookup else "",
        method=scope["method"].encode(),
        target=path + b"?" + query if query else path,
    )
