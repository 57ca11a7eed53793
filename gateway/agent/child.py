"""An engine as a child process: started in a session of its own, ended in order, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Sequence

from gateway.errors import ConfigError

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


class Child:
    """Its output is ours. It has a session of its own: Ctrl-C reaches the agent alone, which drains first."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._told = False

    @classmethod
    async def start(cls, argv: Sequence[str]) -> Child:
        """Raises ConfigError where there is no such command."""
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        except OSError as error:
            raise ConfigError(f"can't start {argv[0]!r}: {error.strerror or error}") from error
        log.info("engine started", extra={"pid": process.pid, "command": list(argv)})
        return cls(process)

    async def wait(self) -> int:
        """Its exit code as a shell has it: 128 + n after signal n, but 0 where the signal was ours."""
        code = await self._process.wait()
        if code >= 0:
            return code
        return 0 if self._told else 128 - code

    async def stop(self, timeout: float) -> int:
        """SIGTERM; SIGKILL to all of its session after `timeout` seconds."""
        if self._process.returncode is None:
            self._told = True
            self._process.terminate()
            try:
                async with asyncio.timeout(timeout):
                    await self._process.wait()
            except TimeoutError:
                log.warning("the engine did not end; it is killed", extra={"after_s": timeout})
        # engines start processes of their own, which a killed one leaves behind
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return await self.wait()


def _end_with_parent() -> None:
    """An engine whose agent was killed would hold its GPU against the next one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
