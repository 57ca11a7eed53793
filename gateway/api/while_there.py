"""Work for a client that is given up when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gateway.errors import Unavailable

T = TypeVar("T")


async def while_there(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`. Raises Unavailable where its client left before: it was cancelled then. `receive`
    is the ASGI application's; all of the body has been read, or will never be."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Unavailable("the client left")
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
