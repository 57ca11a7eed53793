"""Everything that is not generation: health, names, tokens, state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from workers.api.http import json_response, read
from workers.api.models import ServedModels
from workers.api.prompts import Prompts
from workers.api.schema import DetokenizeBody, TokenizeBody
from workers.metrics import EngineMetrics


class Controls(Protocol):
    """What these endpoints need of the engine."""

    @property
    def healthy(self) -> bool: ...

    async def reset_prefix_cache(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Service:
    engine: Controls
    prompts: Prompts
    models: ServedModels
    metrics: EngineMetrics
    in_flight: Callable[[], int]
    version: str
    event_sources: Mapping[str, Any]
    """As /kv_event_sources tells it: publisher settings by data-parallel rank."""

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self.engine.healthy else 503)

    async def list_models(self, _: Request) -> Response:
        return json_response(self.models.body())

    async def show_version(self, _: Request) -> Response:
        return json_response({"version": self.version})

    async def load(self, _: Request) -> Response:
        return json_response({"server_load": self.in_flight()})

    async def kv_event_sources(self, _: Request) -> Response:
        return json_response(self.event_sources)

    async def expose_metrics(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def tokenize(self, request: Request) -> Response:
        body = await read(request, TokenizeBody)
        self.models.resolve(body.model, None)
        tokens = await self.prompts.to_tokenize(body)
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self.models.max_model_len,
                "tokens": tokens,
                "token_strs": self.prompts.token_names(tokens) if body.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        body = await read(request, DetokenizeBody)
        self.models.resolve(body.model, None)
        return json_response({"prompt": self.prompts.decode(body.tokens)})

    async def reset_prefix_cache(self, _: Request) -> Response:
        return json_response({"success": await self.engine.reset_prefix_cache()})
