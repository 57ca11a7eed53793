"""Messages leave in order, at once where the client keeps up, and hold the worker back where it does not."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.outlet import AsgiOutlet, ClientGone, Message

pytestmark = pytest.mark.anyio


class Flow:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


class Server:
    """An ASGI `send` that waits while its gate is shut."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def send(self, message: Message) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


async def test_what_can_go_at_once_goes_at_once() -> None:
    server, flow = Server(), Flow()
    outlet = AsgiOutlet(server.send)
    outlet.attach(flow)
    outlet.start(200, [(b"a", b"b")])
    outlet.body(b"1", last=False)
    outlet.body(b"", last=False)
    outlet.body(b"", last=True)
    assert server.sent == [
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]},
        {"type": "http.response.body", "body": b"1", "more_body": True},
        {"type": "http.response.body", "body": b"", "more_body": False},
    ]
    assert (outlet.started, outlet.ended, outlet.blocked, flow.calls) == (True, True, False, [])


async def test_a_slow_client_holds_its_worker_back_until_all_is_out() -> None:
    server, flow = Server(), Flow()
    outlet = AsgiOutlet(server.send)
    outlet.attach(flow)
    server.gate.clear()
    for piece in (b"1", b"2", b"3"):
        outlet.body(piece, last=False)
    assert (server.sent, outlet.blocked, flow.calls) == ([], True, ["pause"])
    server.gate.set()
    await outlet.drained()
    assert (server.bodies, outlet.blocked, flow.calls) == ([b"1", b"2", b"3"], False, ["pause", "resume"])
    outlet.body(b"4", last=True)
    assert server.bodies == [b"1", b"2", b"3", b"4"]


async def test_a_server_that_says_the_client_is_gone() -> None:
    server = Server()
    outlet = AsgiOutlet(server.send)
    server.error = OSError("gone")
    with pytest.raises(ClientGone):
        outlet.body(b"1", last=False)


async def test_a_client_that_goes_while_it_is_waited_for() -> None:
    server = Server()
    outlet = AsgiOutlet(server.send)
    server.gate.clear()
    outlet.body(b"1", last=False)
    server.error = OSError("gone")
    server.gate.set()
    with pytest.raises(ClientGone):
        await outlet.drained()
    with pytest.raises(ClientGone):
        outlet.body(b"2", last=False)
    outlet.close()


async def test_closing_drops_what_is_left() -> None:
    server = Server()
    outlet = AsgiOutlet(server.send)
    server.gate.clear()
    outlet.body(b"1", last=False)
    outlet.body(b"2", last=True)
    outlet.close()
    await asyncio.sleep(0)
    server.gate.set()
    await asyncio.sleep(0)
    assert server.sent == []


async def test_cancelling_the_wait_leaves_the_sending_alone() -> None:
    server = Server()
    outlet = AsgiOutlet(server.send)
    server.gate.clear()
    outlet.body(b"1", last=True)
    waiter = asyncio.create_task(outlet.drained())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    server.gate.set()
    await outlet.drained()
    assert server.bodies == [b"1"]
