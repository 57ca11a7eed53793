"""Who hears how the sharing of workers' blocks goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.types import WorkerId


class ShareObserver(Protocol):
    """Hears how the sharing goes. Metrics live behind it."""

    def loaded(self, worker: WorkerId, reason: str, blocks: int, seconds: float) -> None: ...

    def refilled(self, worker: WorkerId, reason: str) -> None: ...

    def took_over(self, worker: WorkerId) -> None: ...

    def fenced(self, worker: WorkerId) -> None: ...


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A MirrorObserver that says which worker."""

    worker: WorkerId
    observer: ShareObserver

    def loaded(self, reason: str, blocks: int, seconds: float) -> None:
        self.observer.loaded(self.worker, reason, blocks, seconds)


@dataclass(frozen=True, slots=True)
class Written:
    """A WriterObserver that says which worker."""

    worker: WorkerId
    observer: ShareObserver

    def refilled(self, reason: str) -> None:
        self.observer.refilled(self.worker, reason)
