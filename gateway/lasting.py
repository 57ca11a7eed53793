"""Tasks that are to last as long as what they serve: one that fails is said, counted, and begun again.

Each part of a gateway handles the errors that it knows. This is for the others: a fault of our own, an
exception of a library's that nobody expected. Without it, one such error would end a mirror, a health check
or the sharing of load for good, and all that would be seen of it is that nothing happens any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias

from gateway.backoff import Backoff
from gateway.types import Clock

log = logging.getLogger(__name__)

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Begins the work anew with each call. To return is to be done with it."""


class LastingObserver(Protocol):
    """Hears of tasks by their kind. Metrics live behind it."""

    def begun(self, kind: str) -> None: ...

    def failed(self, kind: str) -> None: ...


class NullLastingObserver:
    def begun(self, kind: str) -> None:
        pass

    def failed(self, kind: str) -> None:
        pass


class Lasting:
    """One per process. Whoever begins a task ends it, by cancelling it."""

    def __init__(
        self,
        observer: LastingObserver | None = None,
        *,
        backoff: Callable[[], Backoff] = Backoff,
        clock: Clock = time.monotonic,
        random: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """Waits are spread over ±50 % by `random` (0 to 1), so that what broke together does not come back as
        one."""
        self._observer = observer if observer is not None else NullLastingObserver()
        self._backoff = backoff
        self._clock = clock
        self._random = random

    def begin(
        self,
        work: Work,
        kind: str,
        *,
        lost: str,
        about: str = "",
        failed: Callable[[Exception], None] | None = None,
        final: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> asyncio.Task[None]:
        """`kind` is one of few, a metric's label; `about` says which one of them. `lost` tells a person what
        is missing while it does not run. `failed` hears of each failure; `final` errors end the task."""
        self._observer.begun(kind)
        name = f"{kind}: {about}" if about else kind
        work_on = self._keep_on(work, kind, name, lost, failed, final)
        return asyncio.get_running_loop().create_task(work_on, name=name)

    async def _keep_on(
        self,
        work: Work,
        kind: str,
        name: str,
        lost: str,
        failed: Callable[[Exception], None] | None,
        final: type[Exception] | tuple[type[Exception], ...],
    ) -> None:
        backoff = self._backoff()
        while True:
            began = self._clock()
            try:
                await work()
                return
            except final:
                raise
            except asyncio.CancelledError as cancelled:
                if _wanted():
                    raise
                # a library cancelled something of its own and let it out
                error: Exception = RuntimeError("cancelled by nobody")
                error.__cause__ = cancelled
            except Exception as unexpected:  # noqa: BLE001 (whatever it is, the task is to last)
                error = unexpected
            self._observer.failed(kind)
            if failed is not None:
                failed(error)
            wait = backoff.after(self._clock() - began) * (0.5 + self._random())
            log.error(
                "a task failed; it is begun again",
                extra={"task": name, "lost": lost, "in_s": round(wait, 2)},
                exc_info=error,
            )
            del error  # or its traceback's frames live until the next one
            await asyncio.sleep(wait)


def _wanted() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
