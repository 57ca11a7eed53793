"""Which engine is asked for tokens next: each that failed lately rests, by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gateway.types import Clock


@dataclass(slots=True, eq=False)
class AskedEngine:
    url: str
    failures: int = 0
    """In a row."""
    resting_until: float = 0.0
    under_way: int = 0
    """Calls; kept by whoever calls."""


class EngineChoice:
    """In turns, over those that do not rest.

    An engine that fails rests for `rest` seconds, doubling up to `max_rest` while it keeps failing. After
    that it is asked once, and by others only when that went well, unless there is nobody else. One that left
    `base_urls` is forgotten.
    """

    def __init__(
        self, base_urls: Callable[[], Sequence[str]], *, clock: Clock, rest: float, max_rest: float
    ) -> None:
        self._base_urls = base_urls
        self._clock = clock
        self._rest = rest
        self._max_rest = max_rest
        self._engines: dict[str, AskedEngine] = {}
        self._turn = 0
        self.reason = ""
        """Of the latest failure."""

    def __repr__(self) -> str:
        failing = sum(engine.failures > 0 for engine in self._engines.values())
        return f"<EngineChoice {failing} of {len(self._engines)} engines failing>"

    @property
    def resting(self) -> bool:
        """Whether there are engines, and all of them rest."""
        engines = self._present()
        return bool(engines) and all(self._rests(engine) for engine in engines)

    def next(self, but: AskedEngine | None = None) -> AskedEngine | None:
        """None where nobody is there to be asked, `but` set aside."""
        awake = [engine for engine in self._present() if engine is not but and not self._rests(engine)]
        # what failed last is on trial: one call tells as much as many, and the others need not wait for it
        choice = [engine for engine in awake if not (engine.failures and engine.under_way)] or awake
        if not choice:
            return None
        self._turn += 1
        return choice[self._turn % len(choice)]

    def answered(self, engine: AskedEngine) -> None:
        engine.failures = 0

    def failed(self, engine: AskedEngine, reason: str) -> None:
        if self._rests(engine):
            return  # calls that were under way together fail together: that is one failure
        self.reason = reason
        engine.failures += 1
        pause = min(self._max_rest, self._rest * 2.0 ** min(engine.failures - 1, 16))
        engine.resting_until = self._clock() + pause

    def _rests(self, engine: AskedEngine) -> bool:
        return self._clock() < engine.resting_until

    def _present(self) -> Collection[AskedEngine]:
        known = self._engines
        self._engines = {url: known.get(url) or AskedEngine(url) for url in self._base_urls()}
        return self._engines.values()
