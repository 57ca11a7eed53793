"""Notices that files have changed: also those that are swapped by a symbolic link, as mounted secrets are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.lasting import Lasting


class FileWatch:
    """Looks every `interval` seconds and calls `changed` when any of `files()` is another than it was."""

    def __init__(
        self,
        files: Callable[[], Sequence[Path]],
        changed: Callable[[], None],
        *,
        interval: float,
        lasting: Lasting | None = None,
    ) -> None:
        self._files = files
        self._changed = changed
        self._interval = interval
        self._lasting = lasting or Lasting()
        self._seen = self._marks()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._lasting.begin(
            self._watch, "file watch", lost="changed keys and certificates are not taken up"
        )

    def look(self) -> None:
        marks = self._marks()
        if marks != self._seen:
            self._changed()
            self._seen = marks  # not before: what failed is to be tried again

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            self.look()

    def _marks(self) -> dict[Path, tuple[int, int, int] | None]:
        return {path: _mark(path) for path in self._files()}


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
