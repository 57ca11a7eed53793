"""docs/faults.md, when nobody is trusted: row by row, against the whole gateway and one engine."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.types import WorkerId
from tests.faults import FaultyEngine, Script, Turn, answers, hangs, head, raw
from tests.gateway.api.told import OWN, ask
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
REST = 60.0
CLOSES = raw(head(503, "content-type: application/json", f"content-length: {len(OWN)}") + OWN)
NOW: dict[str, Script] = {
    "answers": answers(b'{"choices":[]}'),
    "refuses connections": answers(),
    "is silent": hangs(),
    "500": answers(OWN, 500),
    "503": answers(OWN, 503),
    "429": answers(OWN, 429),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Held:
    """Answers 503 and closes, until it is `now` another way; then each request waits for `go`."""

    script: Script = CLOSES
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, turn: Turn) -> None:
        if self.script is not CLOSES:
            await self.go.wait()
        await self.script(turn)


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").split("<!-- untrusted -->")[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]


async def said(gateway: Whole) -> str:
    """A breaker's rest in words: it runs on while the test does."""
    words = await ask(gateway.url)
    seconds = re.search(r"Retry-After: (\d+)$", words)
    if seconds is not None and REST / 2 < int(seconds[1]) <= REST:
        return words[: seconds.start(1)] + "the rest"
    return words


async def distrust(why: str, gateway: Whole, worker: WorkerId) -> None:
    if why == "breakers open":
        for n in range(1, 4):
            await ask(gateway.url)
            await gateway.records(n)
        assert gateway.open_breakers() == [worker]
    elif why == "health checks fail":
        gateway.app.registry.set_health(worker, False, "as the test wants it")
    else:
        gateway.app.registry.withhold(worker, "as the test wants it")


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]} / {row[1]}")
async def test_when_nobody_is_trusted(row: list[str]) -> None:
    why, now, first_is_told, other_is_told = row
    held = Held()
    limits = {"whole_answer_timeout": 0.3} if now == "is silent" else {}
    async with (
        FaultyEngine(held, model="m") as engine,
        whole(engine.url, breaker_rest=REST, queue_wait=60.0, **limits) as gateway,
    ):
        await distrust(why, gateway, WorkerId(engine.url))
        held.script = NOW[now]
        if now == "refuses connections":
            engine.refuse()
        if other_is_told in ("–", "the same"):
            assert await said(gateway) == first_is_told
            assert other_is_told == "–" or await said(gateway) == first_is_told
            return
        engine.arrived.clear()
        first = asyncio.create_task(said(gateway))
        await engine.arrived.wait()
        other = asyncio.create_task(said(gateway))
        if other_is_told.startswith("waits, "):
            async with asyncio.timeout(20):
                while sum(gateway.app.view.queued().values()) != 1:  # noqa: ASYNC110 - the queue tells nobody
                    await asyncio.sleep(0.005)
            other_is_told = other_is_told.removeprefix("waits, ")
        else:
            assert await other == other_is_told
        held.go.set()
        assert await first == first_is_told
        assert await other == (first_is_told if other_is_told == "the same" else other_is_told)


async def test_it_is_counted_and_the_first_good_answer_ends_it() -> None:
    held = Held()
    async with FaultyEngine(held, model="m") as engine, whole(engine.url, breaker_rest=REST) as gateway:
        await distrust("breakers open", gateway, WorkerId(engine.url))
        held.script = NOW["answers"]
        held.go.set()
        for n in range(4, 7):
            assert await said(gateway) == "200"
            await gateway.records(n)
        assert gateway.open_breakers() == []
        assert gateway.decided() == {"only": 5, "last_resort": 1}
