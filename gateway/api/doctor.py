"""The doctor at the admin port: this gateway and its workers, looked at from inside.

It takes what `prefix-gateway doctor` takes from outside, through the same endpoints. Nothing is sent to this
gateway over the network, so its guard and its certificate need no second key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from fastapi import APIRouter, Query, Request, Response

from gateway.errors import Overloaded, Unavailable

if TYPE_CHECKING:
    import httpx

INTERVAL_S = 1.0
LONGEST_S = 60.0
OWN_NAME = "http://this-gateway"
"""How findings name the replica that looked."""

LookedAt: TypeAlias = "Callable[[Request], tuple[Sequence[str], httpx.AsyncBaseTransport]]"
"""Whom a run watches: admin URLs, and how they are reached."""

Window = Annotated[float, Query(ge=1.0, le=LONGEST_S, description="seconds to watch")]


def itself(request: Request) -> tuple[Sequence[str], httpx.AsyncBaseTransport]:
    import httpx

    return [OWN_NAME], httpx.ASGITransport(request.app, raise_app_exceptions=False)


def doctor_routes(closing: Callable[[], bool], looked_at: LookedAt = itself) -> APIRouter:
    """`closing` ends a run: it must not hold up a shutdown."""
    routes = APIRouter()
    one_run = asyncio.Lock()

    def go_on(_: float, __: float) -> None:
        if closing():
            raise Unavailable("shutting down")

    @routes.post("/admin/doctor", tags=["advice"], response_model=dict[str, Any])
    async def examine(request: Request, window: Window = 5.0) -> Response:
        """Watches, then answers the same as `prefix-gateway doctor --json`. One run at a time."""
        if one_run.locked():
            raise Overloaded("the doctor is looking already: one run at a time", retry_after=window)
        async with one_run:
            # few ever ask, and loading it takes a while: then, and beside the requests
            for name in ("collect", "diagnose"):
                await asyncio.to_thread(import_module, f"gateway.diagnosis.{name}")
            from gateway.diagnosis.collect import watch
            from gateway.diagnosis.diagnose import diagnose, document

            urls, transport = looked_at(request)
            facts = await watch(
                urls,
                window=window,
                interval=INTERVAL_S,
                progress=go_on,
                admin_transport=transport,
            )

            def judged() -> bytes:
                return msgspec.json.encode(document(facts, diagnose(facts)))

            return Response(await asyncio.to_thread(judged), media_type="application/json")

    return routes
