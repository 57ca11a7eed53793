"""Keeps the processes: starts them, starts again one that ended, replaces them one by one, ends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.backoff import Backoff
from gateway.errors import ConfigError
from gateway.lasting import Lasting, Work
from gateway.processes.asking import workers_there
from gateway.processes.care import Care
from gateway.processes.crew import Crew
from gateway.processes.journal import Journal
from gateway.processes.member import Member, Phase
from gateway.processes.wire import Drain, Message, Refused, Reload, Reloaded, outgoing
from gateway.settings import Settings

log = logging.getLogger("gateway.processes")

Start = Callable[[int, int, Settings], Awaitable[Member]]
"""(number, seat, settings) → a process that begins. Raises OSError."""


@dataclass(slots=True)
class Supervisor:
    start: Start
    settings: Settings
    crew: Crew
    care: Care
    journal: Journal
    crashes: int = 0
    """Processes that ended and were not told to."""
    _current: dict[int, Member] = field(default_factory=dict)
    _turns: dict[int, asyncio.Lock] = field(default_factory=dict)
    """Held while the process of a number is started or replaced."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _lasting: Lasting = field(default_factory=Lasting)

    async def begin(self) -> None:
        """Until all have begun and one takes connections. Raises ConfigError with the reason of one that can
        not."""
        numbers = range(self.settings.processes)
        self._turns = {number: asyncio.Lock() for number in numbers}
        try:
            for number in numbers:
                await self._new(number, self.settings)
        except OSError as error:
            raise ConfigError(f"a process can't be started: {error}") from error
        if not await self.crew.until(self._have_begun, self.care.patience.begin):
            raise ConfigError(f"the processes did not begin within {self.care.patience.begin:g} s")
        for number in numbers:
            self._spawn(
                partial(self._keep, number), "keeper", number, "a process that ends is not started again"
            )

    async def stop(self) -> bool:
        """All drain at once, within what settings allow; what hangs, or does not end then, is killed. False
        where something was."""
        self.crew.stopping = True
        members = list(self.crew.members)
        for member in members:
            self._tell_to_end(member, replaced=False)
        margin = self.care.patience.margin
        allowed = self.settings.settle + self.settings.shutdown_grace + margin
        if not await self.crew.until(lambda: not self.crew.members, allowed):
            for member in self.crew.members:
                member.give_up()
            await self.crew.until(lambda: not self.crew.members, margin)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        killed = sorted(member.number for member in members if member.given_up)
        if killed:
            log.error(
                "processes did not end as they were told to; they were killed", extra={"numbers": killed}
            )
        return not killed

    def kill(self) -> None:
        for member in self.crew.members:
            member.kill()

    async def reload(self, new: Settings) -> None:
        """In one process after the other. Raises ConfigError where one refuses: the first, before anything
        has changed. One that does not answer takes them up when it comes to itself, or its successor does."""
        async with self._one_at_a_time:
            waiting: set[str] = set()
            answered, unanswered = [], []
            for member in list(self.crew.members):
                if member.phase is Phase.STARTING:
                    member.channel.send(Reload(outgoing(new)))  # it takes it up once it has begun
                    continue
                answer = await self._ask(member, Reload(outgoing(new)))
                if isinstance(answer, Refused):
                    raise ConfigError(answer.reason)
                if isinstance(answer, Reloaded):
                    answered.append(member.number)
                    waiting.update(answer.waiting)
                elif member.alive:
                    unanswered.append(member.number)
            if unanswered and not answered:
                raise ConfigError("no process answers")
            self._take_up(new)
            log.info("settings reloaded", extra={"waiting_for_restart": sorted(waiting)})
            if unanswered:
                log.warning("processes do not answer to a reload", extra={"numbers": sorted(unanswered)})

    async def replace_all(self, new: Settings) -> bool:
        """Each by a successor with the settings `new`, which serves before the old one drains. False where a
        successor does not come to serve: it is given up, and the rest stay as they are. The next one does not
        wait for one that hangs; all are gone when this returns."""
        async with self._one_at_a_time:
            for number in sorted(self._current):
                if self.crew.stopping or not await self._replace(number, new):
                    return False
            await self._gone(self._draining)
            return True

    def _draining(self) -> list[Member]:
        return [member for member in self.crew.members if member.phase is Phase.DRAINING]

    async def _gone(self, members: Callable[[], Sequence[Member]]) -> None:
        """Waits for the end of `members`, who were told to end. What takes longer than it may is killed."""
        allowed = self.settings.shutdown_grace + self.care.patience.margin
        if not await self.crew.until(lambda: not members(), allowed):
            for member in members():
                member.give_up()

    def _have_begun(self) -> bool:
        failed = next((member for member in self._current.values() if not member.alive), None)
        if failed is not None:
            raise ConfigError(
                failed.refused or f"a process ended at its start ({failed.how()}); its output says why"
            )
        return all(m.answering for m in self._current.values()) and bool(self.crew.serving())

    async def _keep(self, number: int) -> None:
        backoff = Backoff()
        while True:
            member = self._current[number]
            await member.ended.wait()
            if self.crew.stopping:
                return
            if self._current[number] is not member:
                continue
            delay = backoff.after(self.crew.clock() - member.began)
            self.crashes += 1
            log.error(
                "a process ended; it is started again",
                extra={
                    "number": number, "pid": member.process.pid, "how": member.how(),
                    "refused": member.refused, "in_s": delay,
                },
            )  # fmt: skip
            await asyncio.sleep(delay)
            async with self._turns[number]:
                if self._current[number] is member and not self.crew.stopping:
                    await self._know_fleet()
                    with contextlib.suppress(OSError):  # said already, and tried again
                        await self._new(number, self.settings)

    async def _replace(self, number: int, settings: Settings) -> bool:
        async with self._turns[number]:
            await self._know_fleet()
            old = self._current[number]
            try:
                successor = await self._start(number, settings)
            except OSError:
                return False
            await self.crew.until(
                lambda: successor.phase in (Phase.SERVING, Phase.ENDED), self.care.patience.ready
            )
            if successor.phase is not Phase.SERVING:
                log.error(
                    "a successor does not come to serve; the process that it was to replace stays",
                    extra={"number": number, "reason": successor.refused or successor.not_ready},
                )
                successor.kill()
                return False
            self._take_up(settings)
            self._current[number] = successor
        log.info(
            "a process was replaced",
            extra={"number": number, "pid": successor.process.pid, "before": old.process.pid},
        )
        self._tell_to_end(old, replaced=True)
        await self._gone(lambda: [old] if old.alive and not old.quiet else [])
        return True

    async def _new(self, number: int, settings: Settings) -> None:
        self._current[number] = await self._start(number, settings)

    async def _start(self, number: int, settings: Settings) -> Member:
        seat = self.crew.free_seat(len(self.care.board))
        try:
            member = await self.start(number, seat, settings)
        except OSError as error:
            log.error("a process can't be started", extra={"number": number, "reason": str(error)})
            raise
        member.behind = self.journal.entries()
        self.crew.members.append(member)
        log.info("a process begins", extra={"number": number, "pid": member.process.pid})
        self._spawn(
            partial(self.care.attend, member), "attendant", number, "what the process says is not heard"
        )
        self._spawn(partial(self.care.watch, member), "watch", number, "a process that hangs is not noticed")
        self._spawn(
            partial(self.care.tend, member), "tender", number, "what it has missed is not made up for"
        )
        return member

    @staticmethod
    def _tell_to_end(member: Member, *, replaced: bool) -> None:
        if member.phase is Phase.STARTING:
            member.kill()
        elif member.alive:
            member.phase = Phase.DRAINING
            member.channel.send(Drain(replaced))

    async def _know_fleet(self) -> None:
        """Forgets words about workers that have left since, if somebody says soon which there are."""
        workers = await workers_there(
            [member for member in self.crew.serving() if member.ready], self.care.patience.know
        )
        if workers is not None:
            self.journal.keep_known(workers)

    async def _ask(self, member: Member, question: Reload) -> Message | None:
        """None where it ended instead, or says nothing for too long."""
        while not member.answers.empty():
            member.answers.get_nowait()
        member.channel.send(question)
        patience = self.care.patience
        began = self.crew.clock()

        def over() -> bool:
            if not member.answers.empty() or not member.alive:
                return True
            waited = self.crew.clock() - began
            return min(waited, member.silence.seconds) >= patience.reload

        await self.crew.until(over, patience.hung)
        return None if member.answers.empty() else member.answers.get_nowait()

    def _take_up(self, new: Settings) -> None:
        if new is not self.settings:
            self.journal.reloaded(self.settings, new)
            self.settings = new

    def _spawn(self, work: Work, kind: str, number: int, lost: str) -> None:
        task = self._lasting.begin(work, kind, about=f"process {number}", lost=lost)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
