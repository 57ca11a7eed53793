"""Work for a client goes on while the client is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.while_there import while_there
from gateway.errors import NotFound, Unavailable

pytestmark = pytest.mark.anyio


class Client:
    """Its body has been sent; it leaves when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._sent = False

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_what_comes_of_the_work_is_what_it_gives() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    async def fails() -> int:
        raise NotFound("nothing is there")

    before = asyncio.all_tasks()
    assert await while_there(Client().receive, work()) == 7
    with pytest.raises(NotFound):
        await while_there(Client().receive, fails())
    assert asyncio.all_tasks() == before, "nothing waits on"


async def test_who_leaves_ends_it_and_so_does_a_server_that_ends() -> None:
    client, begun, ends, before = Client(), asyncio.Event(), list[str](), asyncio.all_tasks()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    working = asyncio.create_task(while_there(client.receive, work()))
    await begun.wait()
    client.left.set()
    with pytest.raises(Unavailable, match="the client left"):
        await working
    begun.clear()
    working = asyncio.create_task(while_there(Client().receive, work()))
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert ends == ["cancelled", "cancelled"]
    assert asyncio.all_tasks() == before
