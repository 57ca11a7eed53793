"""The page, its files, and what it listens to: server-sent events, one reading a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from gateway.api.ui.decisions import Decisions
from gateway.api.ui.snapshot import Snapshots
from gateway.errors import NotFound, Overloaded

TICK_S = 1.0
MOST_PAGES = 32
_KINDS = {"page.css": "text/css", "page.js": "text/javascript", "advice.js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def ui_routes(snapshots: Snapshots, decisions: Decisions, closing: Callable[[], bool]) -> APIRouter:
    """`closing` ends the streams: an open page must not hold up a shutdown."""
    routes = APIRouter(include_in_schema=False)
    static = files("gateway.api.ui") / "static"
    texts = {name: (static / name).read_text("utf-8") for name in ("index.html", *_KINDS)}
    pages = _Pages()

    @routes.get("/ui")
    async def page() -> Response:
        return Response(texts["index.html"], media_type="text/html", headers=_HEADERS)

    @routes.get("/ui/{name}.{kind}")
    async def asset(name: str, kind: str) -> Response:
        file = f"{name}.{kind}"
        if file not in _KINDS:
            raise NotFound(f"no file {file!r}")
        return Response(texts[file], media_type=_KINDS[file], headers=_HEADERS)

    @routes.get("/ui/live")
    async def live(request: Request, after: Annotated[int, Query(ge=0)] = 0) -> Response:
        """Events `state` (everything but decisions) and `decisions` (those not yet sent)."""
        last = request.headers.get("last-event-id", "")
        start = int(last) if last.isascii() and last.isdigit() else after
        if pages.open >= MOST_PAGES:
            raise Overloaded(f"{MOST_PAGES} live pages are open already", retry_after=10.0)
        return StreamingResponse(
            pages.counted(_events(snapshots, decisions, closing, start)),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    @routes.get("/ui/decisions/{number}")
    async def explanation(number: int) -> Response:
        found = decisions.explain(number)
        if found is None:
            raise NotFound("that decision is no longer kept")
        return Response(msgspec.json.encode(found), media_type="application/json")

    return routes


class _Pages:
    """How many are looked at."""

    def __init__(self) -> None:
        self.open = 0

    async def counted(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            async for event in events:
                yield event
        finally:
            self.open -= 1


async def _events(
    snapshots: Snapshots, decisions: Decisions, closing: Callable[[], bool], number: int
) -> AsyncIterator[bytes]:
    while not closing():
        yield b"event: state\ndata: " + await snapshots.json() + b"\n\n"
        rows = decisions.since(number)
        if rows:
            number = rows[-1]["number"]
            yield b"id: %d\nevent: decisions\ndata: %s\n\n" % (number, msgspec.json.encode(rows))
        await asyncio.sleep(TICK_S)
