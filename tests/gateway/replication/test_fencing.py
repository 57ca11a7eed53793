"""No split brain: a writer that was cut off finds another in its place, and nothing of it gets in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gateway.index.replication.delta import Delta
from gateway.index.replication.shelf import Grant, Outcome, Own, Shelf, Taken, load_scripts
from gateway.index.replication.wire import Name
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.types import BlockKey, WorkerId
from tests.servers import Server, server_binaries, standalone

pytestmark = pytest.mark.anyio

OK = Outcome.OK
A, B, C = (BlockKey(number) for number in (2**63 + 1, 2, 3))


@pytest.fixture(scope="module", params=server_binaries(), ids=os.path.basename)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis"), binary=request.param) as running:
        yield running


def adds(*keys: BlockKey, names: dict[int | bytes, Name | None] | None = None) -> Delta:
    return Delta(
        b"position", b"state", copies=dict.fromkeys(keys, 1),
        parents=dict(zip(keys, (None, *keys), strict=False)), names=dict(names or {}),
    )  # fmt: skip


async def held(shelf: Shelf) -> dict[int, tuple[int | None, int]]:
    return {h.key: (h.parent, h.copies) async for page in shelf.held() for h in page}


async def send(
    shelf: Shelf, grant: Grant, number: int, delta: Delta, epoch: bytes = b"", new: bytes = b""
) -> Outcome:
    return await shelf.apply(grant.token, epoch, number, delta, new_epoch=new, complete=True)


async def test_the_life_of_a_shelf(server: Server) -> None:
    """Every answer that a writer can get, in one story."""
    store = Store(parse_store_url(server.url), timeout=10)
    shelf = Shelf(store, WorkerId("w"), load_scripts())
    old = await shelf.acquire("old", 60)
    assert old is not None
    assert (old.number, old.complete) == (0, False)
    assert await shelf.acquire("other", 60) is None, "its lease stands"
    assert await send(shelf, old, 1, adds(A), epoch=b"none") is Outcome.LOST, "there is no epoch to go on in"

    assert await send(shelf, old, 1, adds(A, B, names={7: Name(1, (A,))}), new=b"e1") is Outcome.OK
    assert await send(shelf, old, 2, adds(B), epoch=b"e1") is Outcome.OK
    assert await send(shelf, old, 2, adds(B), epoch=b"e1") is Outcome.OK, "sent again after a lost answer"
    assert await held(shelf) == {A: (None, 1), B: (A, 2)}, "and counted once"
    assert await send(shelf, old, 4, adds(C), epoch=b"e1") is Outcome.LOST, "batch 3 is missing"

    await store.command("DEL", store.keys.lease(WorkerId("w")))  # it ran out
    new = await shelf.acquire("new", 60)
    assert new is not None
    assert (new.epoch, new.number, new.complete, new.position, new.state) == (
        b"e1", 2, True, b"position", b"state",
    )  # fmt: skip
    assert await send(shelf, old, 3, adds(C), epoch=b"e1") is Outcome.FENCED
    assert await send(shelf, old, 3, adds(C), new=b"e2") is Outcome.FENCED, "a new epoch of its own neither"
    assert (await shelf.renew(old.token, "old", 60, 60)).outcome is Outcome.FENCED
    await shelf.release(old.token, "old")
    assert await shelf.acquire("third", 60) is None, "nor can it give away another's lease"
    own = Own(old.origin, 1000)
    assert await shelf.reclaim("old", 60, own) is None, "nor take it back: the other went on with its books"
    assert await held(shelf) == {A: (None, 1), B: (A, 2)}, "nothing of it got in"

    assert await send(shelf, new, 3, Delta(b"p", b"s", copies={B: -2, C: 1}), epoch=b"e1") is Outcome.OK
    assert await held(shelf) == {A: (None, 1), C: (None, 1)}
    assert (await shelf.renew(new.token, "new", 60, 60)).outcome is Outcome.OK
    head = await shelf.head()
    assert head is not None
    assert (head.epoch, head.number, head.token) == (b"e1", 3, new.token), "and who wrote it"

    assert await shelf.void(b"e3")
    assert await held(shelf) == {}
    assert await send(shelf, new, 4, adds(A), epoch=b"e1") is Outcome.VOIDED, "who writes must begin anew"
    assert (await shelf.renew(new.token, "new", 60, 60)).outcome is Outcome.VOIDED
    await store.close()


async def test_books_that_began_without_anothers_give_way_to_more(server: Server) -> None:
    """One is cut off, Redis emptied, another begins with nothing: who knows more blocks writes, once."""
    worker = WorkerId("richer")
    store = Store(parse_store_url(server.url), timeout=10)
    shelf = Shelf(store, worker, load_scripts())
    old = await shelf.acquire("old", 60)
    assert old is not None
    assert await send(shelf, old, 1, adds(A, B, names={7: Name(1, (A,)), 8: Name(1, (B,))}), new=b"e1") is OK
    keys = store.keys
    for key in (keys.meta, keys.held, keys.names, keys.changes, keys.lease):
        await store.command("DEL", key(worker))

    new = await shelf.acquire("new", 60)
    assert new is not None
    assert (new.epoch, new.complete) == (b"", False)
    assert new.origin not in (b"", old.origin)
    assert await send(shelf, new, 1, adds(A, names={7: Name(1, (A,))}), new=b"e2") is OK
    assert await shelf.reclaim("old", 60, Own(old.origin, 1)) is None, "it knows no more"
    back = await shelf.reclaim("old", 60, Own(old.origin, 2))
    assert back is not None
    assert (back.epoch, back.number, back.origin) == (b"e2", 1, old.origin)
    assert await send(shelf, new, 2, adds(C), epoch=b"e2") is Outcome.FENCED
    # it has not written them yet
    assert await shelf.reclaim("new", 60, Own(new.origin, 2)) is None, "and not to and fro"
    await store.command("DEL", keys.lease(worker))  # it ran out
    heir = await shelf.acquire("heir", 60)
    assert heir is not None
    assert heir.origin == old.origin
    assert await shelf.reclaim("old", 60, Own(old.origin, 9)) is None, "its own books are gone on with"
    await store.close()


async def test_what_is_missing_is_taken_only_if_it_was_given_back(server: Server) -> None:
    """By those who leave the writer the first turn."""
    worker = WorkerId("patient")
    store = Store(parse_store_url(server.url), timeout=10)
    shelf = Shelf(store, worker, load_scripts())
    first = await shelf.acquire("a", 60)
    assert first is not None
    taken = await shelf.contend("b", 60, None, returned=True)
    assert isinstance(taken, Taken)
    assert 30 < taken.left_s <= 60
    await store.command("DEL", store.keys.lease(worker))
    assert await shelf.contend("b", 60, None, returned=True) == Taken(0, 0.0)
    assert (await shelf.renew(first.token, "a", 60, 60)).outcome is OK, "its writer may"
    assert await shelf.release(first.token, "a")
    assert not await shelf.release(first.token, "a"), "it has it no more"
    assert isinstance(await shelf.contend("b", 60, None, returned=True), Grant)
    await store.command("DEL", store.keys.lease(worker))
    assert await shelf.contend("a", 60, None, returned=True) == Taken(0, 0.0), "that one gave nothing back"
    await store.command("DEL", store.keys.meta(worker))
    assert await shelf.contend("a", 60, None, returned=True) == Taken(0, 0.0), "nor did an emptied Redis"
    assert isinstance(await shelf.contend("a", 60, None), Grant)
    await store.close()


@pytest.mark.parametrize("key", ["held", "names", "aside"])
async def test_what_was_taken_away_is_missed_by_the_next_batch_and_by_a_successor(
    server: Server, key: str
) -> None:
    """Also one entry of many: no batch counts anew what somebody else took away."""
    worker = WorkerId(f"taken-{key}")
    store = Store(parse_store_url(server.url), timeout=10)
    shelf = Shelf(store, worker, load_scripts())
    grant = await shelf.acquire("a", 60)
    assert grant is not None
    first = Delta(
        b"position", b"state", copies={A: 1, B: 1}, parents={A: None, B: A},
        names={7: Name(1, (A,)), 8: Name(1, (B,))}, aside={b"w1": b"x", b"w2": b"y"},
    )  # fmt: skip
    assert await send(shelf, grant, 1, first, new=b"e1") is Outcome.OK
    # entries come, change, go twice and never were: all of it is counted
    second = Delta(
        b"", b"", copies={A: 1, B: -1, C: -1}, names={7: Name(2, (A,)), 8: None, 9: None},
        aside={b"w1": b"z", b"w2": None, b"w3": b"v"},
    )  # fmt: skip
    assert await send(shelf, grant, 2, second, epoch=b"e1") is Outcome.OK
    assert (await shelf.renew(grant.token, "a", 60, 60)).outcome is Outcome.OK

    name = getattr(store.keys, key)(worker)
    (field, *_) = await store.command("HKEYS", name)
    await store.command("HDEL", name, field)
    later = Delta(b"", b"", copies={C: 1}, names={9: Name(1, (C,))}, aside={b"w4": b"u"})
    assert await send(shelf, grant, 3, later, epoch=b"e1") is Outcome.LOST
    assert (await shelf.renew(grant.token, "a", 60, 60)).outcome is Outcome.LOST
    again = await shelf.acquire("a", 60)
    assert again is not None
    assert (again.number, again.complete) == (2, False), "nor does a successor go on from it"

    assert await send(shelf, again, 3, first, new=b"e2") is Outcome.OK
    assert await send(shelf, again, 4, later, epoch=b"e2") is Outcome.OK
    assert (await shelf.renew(again.token, "a", 60, 60)).outcome is Outcome.OK
    await store.close()


async def test_the_stream_says_how_many_copies_there_are_now(server: Server) -> None:
    store = Store(parse_store_url(server.url), timeout=10)
    shelf = Shelf(store, WorkerId("s"), load_scripts())
    grant = await shelf.acquire("a", 60)
    assert grant is not None
    await send(shelf, grant, 1, adds(A, B), new=b"e")
    await send(shelf, grant, 2, Delta(b"", b"", copies={A: 2, B: -1}), epoch=b"e")
    first, second = await shelf.read(b"0-0", 10, 0.01)
    assert (first.reset, first.number, list(first.records())) == (True, 1, [(A, None, 1), (B, A, 1)])
    assert (second.reset, second.number, list(second.records())) == (False, 2, [(A, None, 3), (B, A, 0)])
    await store.close()


async def test_a_batch_of_any_size_is_one(server: Server) -> None:
    """More arguments than a call inside a script can take at once."""
    store = Store(parse_store_url(server.url), timeout=10)
    shelf = Shelf(store, WorkerId("big"), load_scripts())
    grant = await shelf.acquire("a", 60)
    assert grant is not None
    keys = [BlockKey(number) for number in range(1, 10_001)]
    names: dict[int | bytes, Name | None] = {number: Name(1, (key,)) for number, key in enumerate(keys)}
    assert await send(shelf, grant, 1, adds(*keys, names=names), new=b"e") is Outcome.OK
    assert await shelf.size() == 10_000
    gone = Delta(b"", b"", copies=dict.fromkeys(keys, -1), names=dict.fromkeys(names))
    assert await send(shelf, grant, 2, gone, epoch=b"e") is Outcome.OK
    assert await shelf.size() == 0
    assert [page async for page in shelf.names()] == []
    await store.close()
