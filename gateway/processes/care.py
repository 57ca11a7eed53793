"""One process from its first word to its end: heard, brought to serve, kept up to date, or killed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from gateway.errors import Unavailable
from gateway.processes.board import Board
from gateway.processes.crew import Crew
from gateway.processes.ended import Ended
from gateway.processes.journal import Write
from gateway.processes.member import Member, Phase
from gateway.processes.silence import LOOK_S
from gateway.processes.wire import Accept, Beat, Last, Refused

log = logging.getLogger("gateway.processes")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds."""

    begin: float = 120.0
    """Until its admin port answers."""
    ready: float = 120.0
    """Until a successor serves; then it is given up, and the one it was to replace stays."""
    catch_up: float = 15.0
    """For changes made through admin that a ready process can't follow: a worker that it has not found."""
    hung: float = 30.0
    """Without a word."""
    ending: float = 10.0
    """Without a word, in one that was told to end and still has requests: it hears nobody."""
    know: float = 1.0
    """For word of the fleet's workers, before a process is started."""
    reload: float = 5.0
    """Without a word, while it is to take up settings."""
    margin: float = 10.0
    """Beyond what open answers may take, until a process that was told to end is killed."""


@dataclass(frozen=True, slots=True)
class Care:
    crew: Crew
    board: Board
    ended: Ended
    patience: Patience

    async def attend(self, member: Member) -> None:
        """Hears it to its end."""
        last: Last | None = None
        while (message := await member.channel.receive()) is not None:
            member.silence.broken()
            if isinstance(message, Last):
                last, member.said_last = message, True
            elif isinstance(message, Beat):
                member.unready, member.connections = message.unready, message.connections
                if member.phase is Phase.STARTING:
                    member.phase = Phase.WAITING
            elif isinstance(message, Refused) and not member.answering:
                member.refused = message.reason
            else:
                member.answers.put_nowait(message)
            self.crew.say_changed()
        await member.process.wait()
        self.board.leave(member.seat)
        self.ended.keep(member.seen if last is None else last.families)
        member.phase = Phase.ENDED
        if member in self.crew.members:
            self.crew.members.remove(member)
        member.ended.set()
        self.crew.say_changed()
        await member.channel.close()
        await member.line.close()

    async def watch(self, member: Member) -> None:
        """Kills it where it hangs."""
        while member.alive:
            await asyncio.sleep(LOOK_S)
            member.silence.look()
            if member.silence.seconds > self._longest_silence(member):
                log.error(
                    "a process says nothing; it is killed",
                    extra={"number": member.number, "pid": member.process.pid},
                )
                member.give_up()
                return

    def _longest_silence(self, member: Member) -> float:
        if member.phase is Phase.STARTING:
            return self.patience.begin
        ending = member.phase is Phase.DRAINING and not member.said_last
        return self.patience.ending if ending else self.patience.hung

    async def tend(self, member: Member) -> None:
        """Brings it to serve, and makes up for what it has missed."""
        while member.alive:
            await asyncio.sleep(LOOK_S)
            if member.quiet:
                continue
            if member.behind and member.phase in (Phase.WAITING, Phase.SERVING):
                await self._catch_up(member)
            if member.phase is Phase.WAITING and self.crew.may_serve(member):
                member.phase = Phase.SERVING
                member.channel.send(Accept())
                log.info("a process serves", extra={"number": member.number, "pid": member.process.pid})
                self.crew.say_changed()

    async def _catch_up(self, member: Member) -> None:
        async with self.crew.writing:
            left = []
            for write in member.behind:
                # one that does not answer would let the others' changes wait
                if member.quiet or not await self._settled(member, write):
                    left.append(write)
            member.behind = left
        now = self.crew.clock()
        if not left or not member.ready:
            member.behind_since = None
        elif member.behind_since is None:
            member.behind_since = now
        elif now - member.behind_since > self.patience.catch_up:
            log.warning(
                "changes through admin can't be made up for: what they name is not there",
                extra={"number": member.number, "changes": [f"{w.method} {w.path}" for w in left]},
            )
            member.behind = []

    @staticmethod
    async def _settled(member: Member, write: Write) -> bool:
        try:
            return write.settled((await member.line.write(write)).status_code)
        except Unavailable:
            return False
