"""What is said of something that may come and go by the second: that it is gone, at once; that it is back,
once it has stayed. What goes again in between is no news."""

from __future__ import annotations

SURE_S = 3.0
"""Longer than what is half away takes to fail again: a cluster that lost a master fails by the second."""


class Steady:
    """`now` in seconds. `told` is what was said last: True for there, None while nothing was."""

    def __init__(self, sure_s: float = SURE_S) -> None:
        self._sure_s = sure_s
        self._since: float | None = None
        self.told: bool | None = None

    def gone(self, now: float) -> bool:
        """It is not there; whether that is to be said."""
        news, self.told, self._since = self.told is not False, False, None
        return news

    def there(self, now: float) -> float | None:
        """It is there, as far as can be seen now. How many seconds it has been, where that is to be said: the
        first time at once, then when it is sure."""
        if self.told:
            return None
        if self._since is None:
            self._since = now
        lasted = now - self._since
        if self.told is False and lasted < self._sure_s:
            return None
        self.told = True
        return lasted
