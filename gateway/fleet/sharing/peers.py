"""Who the other replicas are, and what their words do to this one's picture of the fleet. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.fleet.load import LoadBoard
from gateway.fleet.sharing.words import Word
from gateway.types import BlockKey, WorkerId

SILENT_AFTER_S = 1.5
"""A replica says something four times a second; one that missed six words is gone with what it held. With a
tick, a word under way that Redis does not take, and the pause after it, that is noticed within 2.55 s. One
that was only slow is back with its next word, which is the whole truth about it: for that long its load
counts as nothing."""

Place = Callable[[WorkerId, Sequence[BlockKey], float], None]
"""Takes a peer's placement into the own index: worker, keys, now."""


@dataclass(slots=True)
class _Peer:
    number: int
    heard_at: float


class Peers:
    """A replica's name stands for one life of it, so numbers only grow under it; one that was dropped and is
    heard again goes on where it was."""

    def __init__(
        self, me: str, board: LoadBoard, place: Place, *, silent_after_s: float = SILENT_AFTER_S
    ) -> None:
        self._me = me
        self._board = board
        self._place = place
        self._silent_after_s = silent_after_s
        self._peers: dict[str, _Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def names(self) -> list[str]:
        return sorted(self._peers)

    def knows(self, replica: str) -> bool:
        return replica in self._peers

    def hear(self, word: Word, now: float) -> bool:
        """False for what changes nothing: the own echo, a copy, a word that others have overtaken."""
        if word.replica == self._me:
            return False
        peer = self._peers.get(word.replica)
        if peer is not None and word.number <= peer.number:
            return False
        if word.leaving:
            self._drop(word.replica)
            return True
        if word.whole:
            self._board.set_peer_loads(word.replica, word.loads)
        else:
            self._board.update_peer_loads(word.replica, word.loads)
        self._peers[word.replica] = _Peer(word.number, now)
        for placed in word.placements:
            self._place(placed.worker, placed.keys, now)
        return True

    def expire(self, now: float) -> list[str]:
        """Drops those that fell silent; returns their names."""
        silent = [name for name, peer in self._peers.items() if now - peer.heard_at > self._silent_after_s]
        for name in silent:
            self._drop(name)
        return silent

    def _drop(self, name: str) -> None:
        self._peers.pop(name, None)
        self._board.drop_peer(name)
