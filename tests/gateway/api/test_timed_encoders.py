"""What is counted of an encoder's answers."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.api.timed_encoders import timed
from gateway.meters import Counter, Histogram
from gateway.prompt.approx import BytesEncoder
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.prompt.engine import EngineEncoder


@pytest.mark.anyio
async def test_requests_without_tokens_are_counted_by_reason() -> None:
    async def nobody(*_: object, **__: object) -> object:
        raise AssertionError("there is nobody to ask")

    seconds = Histogram("tokenize_seconds", "Time.", ("model", "source"), (1.0,))
    without = Counter("untokenized_requests", "Without.", ("model", "reason"))
    registry = CollectorRegistry()
    registry.register(without)
    encoders = {"e": EngineEncoder(nobody, list, clock=lambda: 0.0), "b": BytesEncoder()}  # type: ignore[arg-type]
    get = timed(encoders.get, seconds, without, lambda: 0.0)
    for model in encoders:
        encoder = get(model)
        assert encoder is not None
        await encoder.encode(PromptRequest(Endpoint.COMPLETIONS, model, prompts=["text"]))
        await encoder.encode(PromptRequest(Endpoint.COMPLETIONS, model, prompts=[[1, 2]]))
        await encoder.encode(PromptRequest(Endpoint.CHAT, model))

    def counted(model: str, reason: str) -> float | None:
        labels = {"model": model, "reason": reason}
        return registry.get_sample_value("untokenized_requests_total", labels)

    assert (counted("e", "no_worker"), counted("e", "unreadable")) == (1, 1)
    assert (counted("b", "no_worker"), counted("b", "unreadable")) == (None, 1)
