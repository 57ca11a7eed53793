"""Models that this fleet has served: scaled to zero is 503, and only what never was is 404."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.fleet.worker import Worker
from gateway.types import Clock

MOST = 1_000
"""Names. Beyond them those not seen for longest are forgotten."""


@dataclass(frozen=True, slots=True)
class Sight:
    base: str
    """The model whose engines served the name: itself, or the one that an adapter belongs to. Empty: they
    were asked, and serve the name no more."""
    at: float
    """When that was so last; Unix time, in seconds."""


class ModelsSeen:
    """Names and when each was last served, by any replica. `wall` is the Unix time, in seconds."""

    def __init__(self, wall: Clock, *, keep_s: float, most: int = MOST) -> None:
        """A name is remembered for `keep_s` after its last sight; with 0 none is."""
        self._wall = wall
        self.keep_s = keep_s
        self._most = most
        self._sights: dict[str, Sight] = {}

    def __len__(self) -> int:
        return len(self._sights)

    def see(self, workers: Iterable[Worker]) -> None:
        """They serve now what their engines say."""
        now = self._wall()
        for worker in workers:
            if worker.info is not None:
                info = worker.info
                names = (info.model, *info.served_names, *info.adapters)
                self.take({name: Sight(info.model, now) for name in names})

    def take(self, sights: Mapping[str, Sight]) -> None:
        """Own sights, or what other replicas saw: the last one of a name counts."""
        oldest = self._wall() - self.keep_s
        for name, sight in sights.items():
            known = self._sights.get(name)
            if sight.at > oldest and (known is None or known.at < sight.at):
                self._sights[name] = sight
        for name in [name for name, sight in self._sights.items() if sight.at <= oldest]:
            del self._sights[name]
        if len(self._sights) > self._most:
            by_age = sorted(self._sights, key=lambda name: self._sights[name].at)
            for name in by_age[: len(self._sights) - self._most]:
                del self._sights[name]

    def unload(self, names: Iterable[str]) -> None:
        """They are served no more, on purpose: there are no such names until somebody serves them again."""
        now = self._wall()
        for name in names:
            known = self._sights.get(name)
            # the sight that it ends may be as young; other replicas compare in milliseconds
            at = now if known is None or known.at < now else known.at + 0.001
            self.take({name: Sight("", at)})

    def current(self) -> dict[str, Sight]:
        oldest = self._wall() - self.keep_s
        return {name: sight for name, sight in self._sights.items() if sight.at > oldest}

    def bases(self) -> dict[str, str]:
        """Each name's base model."""
        return {name: sight.base for name, sight in self.current().items() if sight.base}
