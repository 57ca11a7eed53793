"""The ASGI application: routes, and how errors become answers."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from workers.api.errors import ApiError, EngineFailed
from workers.api.generation import Generation
from workers.api.http import json_response
from workers.api.messages import Messages
from workers.api.responses import Responses
from workers.api.service import Service
from workers.async_engine import EngineDead


def make_app(generation: Generation, service: Service) -> Starlette:
    messages, responses = Messages(generation), Responses(generation)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", generation.chat, methods=["POST"]),
            Route("/v1/completions", generation.completions, methods=["POST"]),
            Route("/v1/messages", messages.create, methods=["POST"]),
            Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
            Route("/v1/responses", responses.create, methods=["POST"]),
            Route("/v1/responses/{response_id}", responses.of_id, methods=["GET"]),
            Route("/v1/responses/{response_id}/cancel", responses.of_id, methods=["POST"]),
            Route("/v1/models", service.list_models, methods=["GET"]),
            Route("/tokenize", service.tokenize, methods=["POST"]),
            Route("/detokenize", service.detokenize, methods=["POST"]),
            Route("/health", service.health, methods=["GET"]),
            Route("/ping", service.health, methods=["GET", "POST"]),
            Route("/version", service.show_version, methods=["GET"]),
            Route("/load", service.load, methods=["GET"]),
            Route("/metrics", service.expose_metrics, methods=["GET"]),
            Route("/kv_event_sources", service.kv_event_sources, methods=["GET"]),
            Route("/reset_prefix_cache", service.reset_prefix_cache, methods=["POST"]),
        ],
        exception_handlers={
            ApiError: _api_error,
            EngineDead: _engine_dead,
            HTTPException: _http_error,
            ClientDisconnect: _client_left,
            Exception: _unexpected,
        },
    )


async def _api_error(_: Request, error: Exception) -> Response:
    known = error if isinstance(error, ApiError) else ApiError(str(error))
    return json_response(known.body(), known.status)


async def _engine_dead(_: Request, error: Exception) -> Response:
    return json_response(EngineFailed(str(error)).body(), EngineFailed.status)


async def _http_error(_: Request, error: Exception) -> Response:
    """No such route, or not with this method: FastAPI's form, which is vLLM's."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = json_response({"detail": getattr(error, "detail", "")}, status)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def _client_left(_: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _unexpected(_: Request, error: Exception) -> Response:
    return json_response(ApiError(f"Internal Server Error: {type(error).__name__}").body(), 500)
