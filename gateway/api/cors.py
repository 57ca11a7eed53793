"""Calls from pages in a browser: closed but for origins that an operator names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from starlette.middleware.cors import CORSMiddleware

from gateway.api.direct import DIRECT

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
        if any(name == b"origin" for name, _ in scope.get("headers", ())):
            scope.pop(DIRECT, None)  # the middleware adds to what is sent, so it has to see it
        await cors(scope, receive, send)

    return asked
