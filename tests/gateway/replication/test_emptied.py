"""Redis loses everything, before an engine that repeats nothing: what its writer knows is not lost,
whoever is quicker."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.index.replication.verify import audit
from gateway.index.replication.wire import Name
from gateway.types import EngineHash
from tests.gateway.replication.rig import Group, eventually, group
from tests.servers import Server, standalone

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

GIVEN_UP = "a worker's blocks are given up: nobody has its books any more"


def empty(server: Server) -> None:
    with server.client() as admin:
        admin.flushall()


def given_up(caplog: pytest.LogCaptureFixture) -> list[int]:
    """How many blocks, each time."""
    return [vars(record)["blocks"] for record in caplog.records if record.message == GIVEN_UP]


async def filled(pair: Group) -> None:
    """One has heard all 20 blocks, which nobody can hear again, and Redis has them."""
    await eventually(pair.shared)
    await eventually(lambda: pair.writer.follower.status().state.value == "following")
    await pair.engine.store(20)
    await pair.converged()


async def goes_on(pair: Group) -> None:
    """All 20 are there, everywhere, and what comes next joins them."""
    await pair.converged()
    await pair.engine.store(5)
    await pair.engine.remove(2)
    await pair.converged()
    assert len(pair.mirror.copies()) == 23


def looks(server: Server) -> int:
    """How often anybody ran a script."""
    with server.client() as admin:
        stats = admin.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


@pytest.mark.parametrize("late", [False, True], ids=["writer in time", "writer late"])
async def test_a_mirror_does_not_come_before_the_writer(tmp_path: Path, late: bool) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False, repeats=False) as pair:
            await filled(pair)
            writer = pair.writer
            let_go = writer.stall() if late else lambda: None
            empty(server)
            if late:
                before = looks(server)
                await eventually(lambda: looks(server) >= before + 4)  # all of them the mirror's
            let_go()
            await goes_on(pair)
            assert pair.writer is writer


async def test_it_is_emptied_again_and_again(tmp_path: Path) -> None:
    """Also in the middle of a refill, and before the mirror has seen the last one."""
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False, repeats=False) as pair:
            await filled(pair)
            refills = pair.writer.observer.heard
            for _ in range(3):
                before = len(refills)
                empty(server)
                await eventually(lambda: len(refills) > before)  # noqa: B023
            empty(server)
            await goes_on(pair)


async def test_a_writer_that_comes_too_late_gets_back_what_only_it_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False, repeats=False) as pair:
            await filled(pair)
            writer, mirror = pair.writer, pair.mirror
            let_go = writer.stall()
            empty(server)
            await eventually(lambda: mirror.role == "writer")
            await eventually(lambda: mirror.copies() == {})
            assert given_up(caplog) == [20]
            await pair.engine.store(3)  # with a parent of which the new writer knows nothing
            let_go()
            await eventually(lambda: mirror.role == "mirror")
            await pair.converged()
            assert pair.writer is writer
            assert ("fenced", "") in mirror.observer.heard
            assert ("fenced", "") not in writer.observer.heard
            assert len(mirror.copies()) == 23


@pytest.mark.parametrize("terms", [1, 2], ids=["the same token again", "another token"])
async def test_a_writer_that_never_hears_that_it_has_its_lease_again(tmp_path: Path, terms: int) -> None:
    """Tokens are counted anew in an emptied Redis: in its first term it gets the one that it has."""
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False, repeats=False) as pair:
            await filled(pair)
            if terms == 2:
                heir = pair.mirror
                await pair.writer.leave()
                await eventually(lambda: heir.role == "writer")
                pair.join()
                await pair.converged()
            writer, mirror = pair.writer, pair.mirror
            let_go = mirror.stall()
            writer.lose_answer_to_acquire()
            empty(server)
            await eventually(lambda: ("refilled", "lost") in writer.observer.heard)
            let_go()
            await goes_on(pair)
            assert pair.writer is writer
            assert ("fenced", "") not in writer.observer.heard


async def test_what_nobody_knows_any_more_is_given_up_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False, repeats=False) as pair:
            await filled(pair)
            writer, mirror = pair.writer, pair.mirror
            writer.stall()  # to die takes it a while, in which the other would take over
            empty(server)
            await writer.die()
            await eventually(lambda: mirror.role == "writer")
            assert mirror.copies() == {}
            assert given_up(caplog) == [20]


async def test_a_writer_that_ends_leaves_what_redis_lost_behind(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False, repeats=False) as pair:
            await filled(pair)
            heir = pair.mirror
            empty(server)
            await pair.writer.leave()
            pair.join()
            await pair.converged()
            assert len(heir.copies()) == 20


@pytest.mark.parametrize("when", ["before", "behind"])
async def test_emptied_while_a_worker_is_handed_over(tmp_path: Path, when: str) -> None:
    """Before the lease is given to the heir, and behind that: before the heir has taken the books."""
    with standalone(tmp_path) as server:
        async with group(server.url, repeats=False) as fleet:
            await filled(fleet)
            shelf = fleet.writer.follower.shelf
            release, emptied = shelf.release, []

            async def unlucky(token: bytes, owner: str, heir: str = "", lease_s: float = 0.0) -> bool:
                if when == "before" and not emptied:
                    empty(server)
                released = await release(token, owner, heir, lease_s)
                if when == "behind" and not emptied:
                    empty(server)
                emptied.append(released)
                return released

            shelf.release = unlucky  # type: ignore[method-assign]
            agent = fleet.join(beside=True)
            await eventually(lambda: bool(emptied) and agent.role == "writer")
            await fleet.converged()
            assert emptied[0] is (when == "behind")
            assert len(agent.copies()) == 20


async def test_books_that_vanish_while_a_successor_reads_them_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the books would be worse than none: what they don't name is never removed."""
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False, repeats=False) as pair:
            await filled(pair)
            writer, heir = pair.writer, pair.mirror
            names = heir.follower.shelf.names

            async def unlucky() -> AsyncGenerator[list[tuple[EngineHash, Name]]]:
                async for page in names():
                    yield page[:10]
                    empty(server)

            heir.follower.shelf.names = unlucky  # type: ignore[method-assign]
            await writer.die()
            await eventually(lambda: heir.role == "writer" and not heir.copies())
            assert given_up(caplog) == [20]
            found = await audit(heir.follower.shelf, heir.follower.stand, heir.index)
            assert (found.blocks, found.extra, found.books_differ) == (0, 0, 0)
