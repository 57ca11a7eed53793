"""Calls from pages in a browser: closed but for origins that an operator names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from starlette.middleware.cors import CORSMiddleware

from gateway.api.direct import DIRECT
from gateway.api.headers import new_request_id, request_id
from gateway.upstream.headers import Headers, value_of

ASGIApp: TypeAlias = Any
"""An ASGI application: called with scope, receive and send."""

_READABLE = (
    "x-request-id", "x-gateway-worker", "x-gateway-prompt-tokens", "x-gateway-matched-tokens", "retry-after",
)  # fmt: skip


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app` itself where there are no `origins`: without the headers, browsers keep pages out."""
    if not origins:
        return app
    cors = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),  # DELETE: of responses
        allow_headers=("*",),
        expose_headers=_READABLE,
        allow_credentials=False,  # a key in a header, never a cookie
    )

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        names = [name for name, _ in scope.get("headers", ())]
        if b"origin" in names:
            scope.pop(DIRECT, None)  # the middleware adds to what is sent, so it has to see it
        elif (direct := scope.get(DIRECT)) is not None:
            direct.vary(b"Origin")  # all that it would add: a cache must not give this one to a page
        if b"access-control-request-method" in names and scope["method"] == "OPTIONS":
            send = _named(scope["headers"], send)  # answered right here
        await cors(scope, receive, send)

    return asked


def _named(asked: Headers, send: Any) -> Any:
    """`send` that gives an answer its request's name."""
    name = request_id(value_of(asked, b"x-request-id"), new_request_id)

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"x-request-id", name)]}
        await send(message)

    return sent
