"""All keys of one moment: which of them is this? A new key file makes a new keyring."""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Iterable

from gateway.auth.hashing import is_slow, matches, sha256_of
from gateway.auth.keys import ApiKey
from gateway.errors import ConfigError

_REMEMBERED = 4096


class Keyring:
    """Fast hashes are looked up, slow ones tried one after the other off the event loop, and what came of it
    is remembered by the presented key's own hash."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        """Raises ConfigError where two keys share an id, a hash or a cache_salt."""
        self.keys = tuple(keys)
        _refuse_doubles(self.keys)
        self._fast = {h: key for key in self.keys for h in key.hashes if not is_slow(h)}
        self._slow = [(h, key) for key in self.keys for h in key.hashes if is_slow(h)]
        self._known: dict[str, ApiKey] = {}
        self._wrong: OrderedDict[str, None] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(key.id for key in self.keys) or 'empty'}>"

    async def find(self, secret: str) -> ApiKey | None:
        digest = sha256_of(secret)
        key = self._fast.get(digest)
        if key is not None:
            # a dict compares its keys byte by byte; what it says is settled in constant time
            return key if any(hmac.compare_digest(digest, stored) for stored in key.hashes) else None
        if not self._slow:
            return None
        if digest in self._known or digest in self._wrong:
            return self._known.get(digest)
        # wrong keys in numbers make each other wait, not the keys that have been seen to be good
        async with self._one_at_a_time:
            if digest not in self._known and digest not in self._wrong:
                self._remember(digest, await asyncio.to_thread(self._try_slow, secret))
        return self._known.get(digest)

    def _remember(self, digest: str, key: ApiKey | None) -> None:
        if key is not None:
            self._known[digest] = key  # as many as there are slow hashes
            return
        self._wrong[digest] = None
        if len(self._wrong) > _REMEMBERED:
            self._wrong.popitem(last=False)

    def _try_slow(self, secret: str) -> ApiKey | None:
        found: ApiKey | None = None
        for stored, key in self._slow:  # all of them: time must not tell how far one got
            if matches(secret, stored):
                found = key
        return found


def _refuse_doubles(keys: tuple[ApiKey, ...]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for key in keys:
        marks = [("id", key.id), *(("hash", stored) for stored in dict.fromkeys(key.hashes))]
        if key.cache_salt:
            marks.append(("cache_salt", key.cache_salt))
        for mark in marks:
            if mark in seen:
                raise ConfigError(f"keys {seen[mark]!r} and {key.id!r} have the same {mark[0]}")
            seen[mark] = key.id
