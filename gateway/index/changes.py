"""What happened to one worker's holdings, in our keys: what event followers emit and indexes apply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from gateway.index.base import IndexWriter
from gateway.types import BlockKey, WorkerId


@dataclass(frozen=True, slots=True)
class Stored:
    """One more copy of each key: consecutive blocks, `parent` the key before the first."""

    keys: tuple[BlockKey, ...]
    parent: BlockKey | None


@dataclass(frozen=True, slots=True)
class Removed:
    """One copy of each key less; the keys need not be related."""

    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is held any more: a new epoch, or a reset by the engine itself."""


Change: TypeAlias = Stored | Removed | Cleared


def apply_changes(index: IndexWriter, worker: WorkerId, changes: Iterable[Change]) -> None:
    for change in changes:
        match change:
            case Stored(keys, parent):
                index.store(worker, keys, parent)
            case Removed(keys):
                index.remove(worker, keys)
            case Cleared():
                index.clear(worker)
