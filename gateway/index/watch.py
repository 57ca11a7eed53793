"""Did a worker's block go while somebody relied on it? Noted as it goes: it may be back when asked for."""

from __future__ import annotations


class Watch:
    """Over one block of one worker, for all who rely on it at once."""

    __slots__ = ("gone", "key", "users")

    def __init__(self, key: int) -> None:
        self.key = key
        self.users = 1
        self.gone = False
        """By the worker's own word, be it stored again since or not."""


class Watches:
    """Of one worker, over what it holds."""

    __slots__ = ("_over",)

    def __init__(self) -> None:
        self._over: dict[int, Watch] = {}

    def __len__(self) -> int:
        return len(self._over)

    def begin(self, key: int) -> Watch:
        watch = self._over.get(key)
        if watch is None:
            watch = self._over[key] = Watch(key)
        else:
            watch.users += 1
        return watch

    def end(self, watch: Watch) -> None:
        watch.users -= 1
        if not watch.users and self._over.get(watch.key) is watch:
            del self._over[watch.key]

    def gone(self, key: int) -> None:
        """Whoever begins to watch it from now on has another one."""
        watch = self._over.pop(key, None)
        if watch is not None:
            watch.gone = True
