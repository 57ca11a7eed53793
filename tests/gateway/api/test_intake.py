"""Connections as they are taken: counted, and without file descriptors left to wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from gateway.api.intake import Gatekeeper, Intake
from gateway.open_files import within_open_files

pytestmark = pytest.mark.anyio


class Greeter(asyncio.Protocol):
    def __init__(self, there: set[asyncio.Protocol]) -> None:
        self._there = there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._there.add(self)
        transport.write(b"hello")  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self._there.discard(self)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_who_comes_while_there_are_no_descriptors_waits_and_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "gateway")
    exhausted, twice = [0], asyncio.Event()

    def on_exhausted() -> None:
        exhausted[0] += 1
        if exhausted[0] == 2:
            twice.set()

    there: set[asyncio.Protocol] = set()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
        listening.setblocking(False)
        intake = Intake(
            lambda: Greeter(there), context=None, max_connections=10, patience=10.0,
            open_connections=lambda: len(there), on_exhausted=on_exhausted,
        )  # fmt: skip
        keeper = Gatekeeper(listening, intake)
        with no_more_files():
            client.connect(listening.getsockname())
            await asyncio.wait_for(twice.wait(), 30)
            assert intake.connections == 0
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        assert await asyncio.wait_for(loop.sock_recv(client, 5), 30) == b"hello"
        assert intake.connections == 1
        keeper.stop()
    # one line, however often it was tried
    assert [(r.levelname, r.reason) for r in caplog.records] == [("WARNING", "Too many open files")]  # type: ignore[attr-defined]
    while there:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("files", "asked", "allowed"),
    [(20_000, 8192, 8192), (1000, 8192, 372), (1000, 100, 100), (300, 8192, 75), (100, 8192, 25)],
)
def test_connections_leave_files_for_the_rest(files: int, asked: int, allowed: int) -> None:
    """Two a client; 256 for all else, or half."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        pytest.skip(f"this system allows {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        assert within_open_files(asked) == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
