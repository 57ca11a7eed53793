"""Encoders as they are, with a watch on them: tokenising is most of what a decision costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gateway.meters import Count, Counter, Histogram, Spread
from gateway.prompt.base import PromptEncoder, PromptRequest, TokenPrompt, not_tokenised
from gateway.types import Clock

Encoders = Callable[[str], PromptEncoder | None]
Ear = Callable[[str, PromptEncoder, Sequence[TokenPrompt]], None]
"""Hears whose tokens they are, who made them, and the tokens of one request."""


def timed(
    encoders: Encoders, seconds: Histogram, without: Counter, clock: Clock, ear: Ear | None = None
) -> Encoders:
    """`seconds` has the labels (model, source), `without` (model, reason): requests without tokens."""
    known: dict[str, _Timed] = {}

    def get(model: str) -> PromptEncoder | None:
        encoder = encoders(model)
        if encoder is None:
            return None
        one = known.get(model)
        if one is None or one.inner is not encoder:
            one = known[model] = _Timed(
                encoder,
                seconds.labels(model, encoder.name),
                partial(without.labels, model),
                clock,
                None if ear is None else partial(ear, model, encoder),
            )
        return one

    return get


class _Timed:
    def __init__(
        self,
        inner: PromptEncoder,
        seconds: Spread,
        without: Callable[[str], Count],
        clock: Clock,
        ear: Callable[[Sequence[TokenPrompt]], None] | None,
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self.exact = inner.exact
        self._seconds = seconds
        self._without = without
        self._clock = clock
        self._ear = ear

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]:
        began = self._clock()
        try:
            prompts = await self.inner.encode(request)
        finally:
            self._seconds.observe(self._clock() - began)
        if not prompts and (none := not_tokenised(prompts, request)) is not None:
            self._without(none.kind).inc()
        if self._ear is not None:
            self._ear(prompts)
        return prompts

    async def close(self) -> None:
        await self.inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
