"""The processes that live, and what follows from how they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.errors import Unavailable
from gateway.processes.member import Member, Phase
from gateway.processes.silence import LOOK_S
from gateway.types import Clock


@dataclass(slots=True)
class Crew:
    clock: Clock
    members: list[Member] = field(default_factory=list)
    """Also successors that do not serve yet, and those that drain."""
    stopping: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is changed in all processes, or made up for in one."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def serving(self) -> list[Member]:
        return [member for member in self.members if member.phase is Phase.SERVING]

    def answering(self) -> list[Member]:
        return [member for member in self.members if member.answering]

    def speakers(self) -> list[Member]:
        """Who answers for all, best first. Raises Unavailable."""
        candidates = heard(self.serving() or self.answering())
        if not candidates:
            raise Unavailable("no process answers yet", retry_after=1.0)
        return sorted(candidates, key=lambda member: (not member.ready, member.number))

    def unready(self) -> str | None:
        """Why this machine should get no traffic; None where one of its processes is ready."""
        if self.stopping:
            return "shutting down"
        serving = self.serving()
        if not serving:
            return "no process serves yet"
        reasons = [member.not_ready for member in serving]
        return None if None in reasons else reasons[0]

    def may_serve(self, member: Member) -> bool:
        """With all that was changed through admin, and as ready as those who serve: it must not take requests
        from them that it can't place."""
        if not any(other.ready for other in self.serving()):
            return True
        return member.ready and not member.behind

    def free_seat(self, seats: int) -> int:
        taken = {member.seat for member in self.members}
        return next(seat for seat in range(seats) if seat not in taken)

    def say_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, come: Callable[[], bool], seconds: float) -> bool:
        """False where it did not come in time."""
        end = self.clock() + seconds
        while not come():
            left = end - self.clock()
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_S)):
                    await self._changed.wait()
        return True


def heard(members: Sequence[Member]) -> list[Member]:
    """Those of them to ask: who says nothing is passed over, unless nobody says anything."""
    return [member for member in members if not member.quiet] or list(members)
