"""Traces of requests: a span each where a collector is named, else what a client sent is passed on."""

from __future__ import annotations

from typing import Protocol

from gateway.api.record import RequestRecord
from gateway.upstream.headers import Headers


class Trace(Protocol):
    """One request's part of a trace."""

    headers: Headers
    """Trace context for the worker, in place of the client's. Empty: the client's own goes on."""

    def end(self, record: RequestRecord) -> None: ...


class Tracer(Protocol):
    def begin(self, headers: Headers, name: str) -> Trace:
        """`headers` are the client's; `name` is the endpoint's."""
        ...

    async def close(self) -> None: ...
