"""One gateway process, as the supervisor knows it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import gateway
from gateway.processes.families import Family
from gateway.processes.journal import Write
from gateway.processes.relay import Line
from gateway.processes.silence import Silence
from gateway.processes.wire import Begin, Channel, Message

_ROOT = str(Path(gateway.__file__).resolve().parents[1])


class Phase(Enum):
    STARTING = "starting"
    WAITING = "waiting"
    """Its admin port answers; it takes no connections yet."""
    SERVING = "serving"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Member:
    number: int
    """0…N-1; a successor has its predecessor's."""
    seat: int
    began: float
    process: asyncio.subprocess.Process
    channel: Channel
    line: Line
    """To its admin port."""
    silence: Silence
    phase: Phase = Phase.STARTING
    unready: str | None = "starting"
    """By its own last word."""
    connections: int = 0
    refused: str | None = None
    """Why it could not begin."""
    said_last: bool = False
    """It has served its last request and closes what it has."""
    given_up: bool = False
    """It did not end as it was told to, or hung: it was killed."""
    behind: list[Write] = field(default_factory=list)
    """What it has not done yet of what was changed through admin."""
    behind_since: float | None = None
    seen: list[Family] = field(default_factory=list)
    """Its metrics as they were last read."""
    answers: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    """To what it was told to reload."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> bool:
        return self.phase is not Phase.ENDED

    @property
    def answering(self) -> bool:
        """Its admin port."""
        return self.phase in (Phase.WAITING, Phase.SERVING, Phase.DRAINING)

    @property
    def quiet(self) -> bool:
        """It has begun, and does not say any more how it is."""
        return self.answering and self.silence.quiet

    @property
    def not_ready(self) -> str | None:
        """Why it should get no requests; None where it may."""
        return f"has said nothing for {self.silence.seconds:.0f} s" if self.quiet else self.unready

    @property
    def ready(self) -> bool:
        return self.not_ready is None

    def give_up(self) -> None:
        self.given_up = True
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    def how(self) -> str:
        code = self.process.returncode
        return "unknown" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"


async def start_member(begin: Begin, listening: int, board: int, now: float) -> Member:
    """`listening` and `board` are descriptors that it inherits. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        handed = (theirs.fileno(), listening, board)
        flags = zip(("--control", "--listening", "--board"), map(str, handed), strict=True)
        # -P and our own root: it runs the code that we run, whatever lies where we were started
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "gateway", "process"),
                *(part for flag in flags for part in flag),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=handed,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends them in order
            )
        except OSError:
            ours.close()
            raise
    channel = await Channel.over(ours)
    channel.send(begin)
    silence = Silence()
    line = Line(begin.admin, f"process-{begin.number}", silence)
    return Member(begin.number, begin.seat, now, process, channel, line, silence)
