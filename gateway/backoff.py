"""How long to wait before what ended is begun again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Seconds. At once after a long life; doubling from `first` up to `most` while lives are short."""

    first: float = 0.5
    most: float = 30.0
    well: float = 60.0
    """Who lived so long was well."""
    _failures: int = 0

    def after(self, lived: float) -> float:
        if lived >= self.well:
            self._failures = 0
            return 0.0
        self._failures += 1
        return min(self.most, self.first * 2.0 ** min(self._failures - 1, 16))
