"""All that is done to one worker's keys in Redis. Every method raises StoreError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gateway.errors import StoreError
from gateway.index.replication.delta import Delta
from gateway.index.replication.wire import (
    RECORD_SIZE,
    Held,
    Name,
    pack_deltas,
    pack_entry,
    pack_name,
    unpack_entry,
    unpack_name,
    unpack_records,
)
from gateway.store.connection import Argument, Store
from gateway.store.scripts import Script, load_script
from gateway.types import EngineHash, WorkerId

STREAM_LENGTH = 2048
"""Batches kept for mirrors; one that falls further behind loads the whole set anew."""
PAGE = 2000
UNREADABLE = "unreadable"
"""Kind of error: the stream has what can't be understood, and will have it at the next try."""
PAGE_TIMEOUT = 10.0
"""Pages and batches are large; nothing that answers waits for them."""


class Outcome(Enum):
    OK = "ok"
    FENCED = "fenced"
    """Another writes this worker now."""
    VOIDED = "voided"
    """Somebody had all of it forgotten."""
    LOST = "lost"
    """Redis does not have what was written before: emptied, failed over, restored."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to write, and where the one before stopped."""

    token: bytes
    epoch: bytes
    number: int
    """Of the batch applied last."""
    complete: bool
    """All that the one before knew is there; else a successor begins anew."""
    position: bytes
    state: bytes
    origin: bytes
    """Names the line of books since they began with nothing: a successor that finds them goes on in it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Another has the right to write, or is to have it first."""

    writes: int
    """How many workers that one writes; 0 where it wants to be left alone, or did not say."""
    left_s: float
    """Until its lease runs out; 0 where it is missing."""


@dataclass(frozen=True, slots=True)
class Own:
    """What a writer knows by itself, whatever Redis has."""

    origin: bytes
    blocks: int
    """Named in its books."""


NOTHING = Own(b"", 0)


@dataclass(frozen=True, slots=True)
class Asking:
    """Who would like to be the writer."""

    figure: int
    owner: str


@dataclass(frozen=True, slots=True)
class Renewal:
    outcome: Outcome
    asking: Asking | None = None


@dataclass(frozen=True, slots=True)
class Head:
    entry: bytes
    """Id of the stream entry that was written last."""
    epoch: bytes
    number: int
    token: bytes
    """Of who wrote that batch."""
    complete: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch, as the stream has it."""

    id: bytes
    epoch: bytes
    number: int
    token: bytes
    reset: bool
    complete: bool
    """With it all is there that its writer knows: no part of a refill that goes on."""
    payload: bytes

    def __len__(self) -> int:
        """Records."""
        return len(self.payload) // RECORD_SIZE

    def records(self) -> Iterable[Held]:
        return unpack_records(self.payload)


@dataclass(frozen=True, slots=True)
class Scripts:
    acquire: Script
    apply: Script
    head: Script
    page: Script
    release: Script
    renew: Script
    void: Script


def load_scripts() -> Scripts:
    names = ("acquire", "apply", "head", "page", "release", "renew", "void")
    return Scripts(**{name: load_script(__package__ or "", name) for name in names})


class Shelf:
    """One worker's keys, all of one hash tag."""

    def __init__(
        self, store: Store, worker: WorkerId, scripts: Scripts, *, stream_length: int = STREAM_LENGTH
    ) -> None:
        self.worker = worker
        self._store = store
        self._scripts = scripts
        self._stream_length = stream_length
        keys = store.keys
        self._meta, self._held, self._names = keys.meta(worker), keys.held(worker), keys.names(worker)
        self._aside, self._changes = keys.aside(worker), keys.changes(worker)
        self._lease, self._wish = keys.lease(worker), keys.wish(worker)

    async def again(self) -> None:
        """Returns when it makes sense to try again what has failed."""
        await self._store.again()

    # the writer's

    async def acquire(self, owner: str, lease_s: float, own: Own = NOTHING) -> Grant | None:
        """None where another has it."""
        answer = await self.contend(owner, lease_s, None, own=own)
        return answer if isinstance(answer, Grant) else None

    async def reclaim(self, owner: str, lease_s: float, own: Own) -> Grant | None:
        """Also from one who has it, if that one began its books without these and knows fewer blocks. None
        where that is not so."""
        answer = await self._ask(owner, lease_s, "", "richer", own)
        return answer if isinstance(answer, Grant) else None

    async def resume(self, owner: str, lease_s: float, own: Own) -> Grant | None:
        """The lease that is this owner's already: it may have been given with an answer that got lost. None
        where it is not."""
        answer = await self._ask(owner, lease_s, "", "mine", own)
        return answer if isinstance(answer, Grant) else None

    async def contend(
        self, owner: str, lease_s: float, figure: int | None, *, returned: bool = False, own: Own = NOTHING
    ) -> Grant | Taken:
        """Where another has it, it is asked for with this figure, or, with None, not any more. `returned`:
        one that is missing is taken only if it was given back."""
        asked = "" if figure is None else figure
        return await self._ask(owner, lease_s, asked, "returned" if returned else "", own)

    async def _ask(self, owner: str, lease_s: float, figure: int | str, how: str, own: Own) -> Grant | Taken:
        answer = await self._store.script(
            self._scripts.acquire,
            [self._meta, self._lease, self._wish, self._held, self._names, self._aside],
            [owner, _ms(lease_s), figure, _ms(lease_s), how, own.origin, own.blocks],
        )
        if len(answer) == 2:
            return Taken(int(answer[0] or 0), max(0, answer[1]) / 1000)
        token, epoch, number, complete, position, state, origin = answer
        return Grant(token, epoch, int(number), complete == b"1", position, state, origin)

    async def renew(
        self, token: bytes, owner: str, lease_s: float, keep_s: float, writes: int = 0
    ) -> Renewal:
        """`writes` tells others how many workers this owner writes; 0: leave it alone."""
        keys = [self._meta, self._lease, self._wish, self._held, self._names, self._aside, self._changes]
        outcome, *asking = await self._store.script(
            self._scripts.renew, keys, [token, owner, _ms(lease_s), _ms(keep_s), writes]
        )
        return Renewal(Outcome(outcome.decode()), _asking(asking[0]) if asking else None)

    async def release(self, token: bytes, owner: str, heir: str = "", lease_s: float = 0.0) -> bool:
        """To anyone, or for so many seconds only to the `heir`. False where it is not this owner's."""
        keys = [self._meta, self._lease, self._wish]
        return bool(await self._store.script(self._scripts.release, keys, [token, owner, heir, _ms(lease_s)]))

    async def apply(
        self, token: bytes, epoch: bytes, number: int, delta: Delta, *, new_epoch: bytes, complete: bool
    ) -> Outcome:
        """`new_epoch` is empty where the batch goes on in `epoch`. Sent twice, it counts once."""
        put = {pack_name(block): pack_entry(name) for block, name in delta.names.items() if name is not None}
        gone = [pack_name(block) for block, name in delta.names.items() if name is None]
        args: list[Argument] = [
            token, epoch, number, new_epoch, int(complete), delta.position, delta.state, self._stream_length,
            pack_deltas(delta.deltas()),
            *_pairs(put), *_listed(gone),
            *_pairs({k: v for k, v in delta.aside.items() if v is not None}),
            *_listed([k for k, v in delta.aside.items() if v is None]),
        ]  # fmt: skip
        keys = [self._meta, self._held, self._names, self._aside, self._changes]
        answer = await self._store.script(self._scripts.apply, keys, args, timeout=PAGE_TIMEOUT)
        return Outcome(answer.decode())

    async def void(self, new_epoch: bytes) -> bool:
        """Forgets all; its writer is fenced off and begins anew. False where nothing was known."""
        keys = [self._meta, self._held, self._names, self._aside, self._changes]
        return bool(await self._store.script(self._scripts.void, keys, [new_epoch, self._stream_length]))

    # a reader's

    async def head(self) -> Head | None:
        """None where nothing was ever written, or Redis was emptied."""
        answer = await self._store.script(self._scripts.head, [self._meta, self._changes])
        if not answer:
            return None
        entry, epoch, number, token, complete = answer
        return Head(entry, epoch, int(number), token, complete == b"1")

    async def read(self, after: bytes, count: int, block_s: float) -> list[Entry]:
        """Entries after that id; waits up to `block_s` seconds for the first."""
        answer = await self._store.command(
            "XREAD", "COUNT", count, "BLOCK", _ms(block_s), "STREAMS", self._changes, after,
            timeout=block_s + PAGE_TIMEOUT,
        )  # fmt: skip
        if not answer:
            return []
        return [_entry(id, fields) for id, fields in answer[0][1]]

    async def held(self) -> AsyncGenerator[list[Held]]:
        """As `held_records`, unpacked."""
        async for page in self.held_records():
            yield list(unpack_records(page))

    async def held_records(self) -> AsyncGenerator[bytes]:
        """Page by page; what changes meanwhile may be seen as it was or as it is, and some of it twice.

        One string a page, in place of a thousand small ones: to take a million blocks in is mostly the price
        of their Python objects.
        """
        cursor: bytes | int = 0
        while True:
            cursor, page = await self._store.script(
                self._scripts.page, [self._held], [cursor, PAGE], timeout=PAGE_TIMEOUT
            )
            if page:
                yield page
            if not int(cursor):
                return

    async def names(self) -> AsyncGenerator[list[tuple[EngineHash, Name]]]:
        async for page in self._pages(self._names):
            yield [(unpack_name(field), unpack_entry(value)) for field, value in page.items()]

    async def aside(self) -> AsyncGenerator[dict[bytes, bytes]]:
        async for page in self._pages(self._aside):
            yield page

    async def size(self) -> int:
        """Blocks held."""
        return int(await self._store.command("HLEN", self._held))

    async def _pages(self, key: str) -> AsyncGenerator[dict[bytes, bytes]]:
        cursor = 0
        while True:
            answer: Any = await self._store.command("HSCAN", key, cursor, "COUNT", PAGE, timeout=PAGE_TIMEOUT)
            cursor, page = int(answer[0]), answer[1]
            if page:
                yield page
            if not cursor:
                return


def _asking(value: bytes) -> Asking | None:
    figure, _, owner = value.decode().partition(" ")
    return Asking(int(figure), owner) if owner else None


def _entry(id: bytes, fields: dict[bytes, bytes]) -> Entry:
    try:
        # entries of an older writer do not say whether they are a part
        return Entry(
            id, fields[b"e"], int(fields[b"n"]), fields[b"t"], fields[b"r"] == b"1",
            fields.get(b"c") != b"0", fields[b"p"],
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise StoreError(f"a stream entry that no writer wrote: {error}", kind=UNREADABLE) from error


def _pairs(entries: dict[bytes, bytes]) -> list[Argument]:
    flat: list[Argument] = [2 * len(entries)]
    for field, value in entries.items():
        flat += (field, value)
    return flat


def _listed(fields: list[bytes]) -> list[Argument]:
    return [len(fields), *fields]


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
