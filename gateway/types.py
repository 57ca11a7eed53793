"""Names that travel through the whole gateway. Nothing here does anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NewType, Protocol, TypeAlias

import msgspec

BlockKey = NewType("BlockKey", int)
"""Chained 64-bit hash of one full block and of all before it (docs/block-keys.md)."""

WorkerId = NewType("WorkerId", str)
"""One engine endpoint, or one data-parallel rank of it: ``http://10.0.0.7:8000`` or ``…#dp1``."""

EngineHash: TypeAlias = int | bytes
"""An engine's own name of a block. Opaque: never compared across engines, never rooted in ours."""

Reason: TypeAlias = Literal["match", "load", "media", "cold", "only", "last_resort", "unread"]
"""Why a worker was chosen (gateway.routing.weighing), or that nothing was known of the prompt."""

Clock: TypeAlias = Callable[[], float]
"""Seconds, monotonic. Passed in, so that tests and simulations own the time."""


class CacheScope(msgspec.Struct, frozen=True):
    """Everything beside the tokens that decides what K/V a prompt has: it is the root of the key chain."""

    model: str
    """The engine's base model name, never an alias."""
    adapter: str = ""
    salt: str = ""


class Usage(msgspec.Struct, frozen=True):
    """What an engine reports about one answer, in tokens; ``cached_tokens`` is None where it is silent."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


SERVER = "prefix-gateway"
"""What a gateway's own `/health` says that it is: it is no engine."""


class EngineAnswer(msgspec.Struct, frozen=True):
    """What an engine said when it was asked about itself, or to tokenise: whole."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300


class AskEngine(Protocol):
    async def __call__(
        self, url: str, path: str, *, timeout: float, content: bytes | None = None
    ) -> EngineAnswer:
        """`path` of the engine at base URL `url`: GET, or POST of JSON where `content` is given. Ends within
        `timeout` seconds. Raises UpstreamError, and ConfigError for a URL that is none."""
        ...
