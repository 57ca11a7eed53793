"""Admin endpoints that advise: what traffic says of itself, and a plan of K/V memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response

from gateway.api.traffic import Traffic
from gateway.diagnosis.divergence import Divergence, Head, divergence
from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from gateway.planning import Catalog


def advice_routes(traffic: Traffic) -> APIRouter:
    routes = APIRouter()
    built = cache(_catalog)

    async def catalog() -> Catalog:
        """Few ever ask, and loading what a plan takes is long: then, and beside the requests."""
        await asyncio.to_thread(import_module, "gateway.planning")
        return await asyncio.to_thread(built)

    @routes.get("/admin/traffic", tags=["advice"])
    async def what_traffic_says() -> dict[str, Any]:
        """By model: hit rate against cache size, cost by turn, and where prompts of one kind diverge."""
        heads = traffic.heads()
        # every prompt against every other: streams must not wait for it
        found = await asyncio.to_thread(_compared, heads)
        view: dict[str, Any] = msgspec.to_builtins(traffic.judged(found))
        return {"models": view}

    @routes.get("/admin/plan", tags=["advice"])
    async def plan_names() -> dict[str, list[str]]:
        """The names that a request for a plan may use; aliases are understood as well."""
        known = await catalog()
        from gateway.planning.precision import KV, WEIGHTS

        return {
            "models": [model.name for model in known.models],
            "gpus": [gpu.name for gpu in known.gpus],
            "kv": ["auto", *KV],
            "weights": list(WEIGHTS),
            "scenarios": [scenario.name for scenario in known.scenarios],
        }

    @routes.post("/admin/plan", tags=["advice"])
    async def plan_memory(request: Request) -> Response:
        """The same as `prefix-gateway plan --json`: models and GPUs by name or by figures, never by path."""
        known = await catalog()
        from gateway.planning import PlanRequest, plan

        try:
            wanted = msgspec.json.decode(await request.body(), type=PlanRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"not a request for a plan: {error}") from error
        made = plan(wanted, known, read_files=False)
        return Response(msgspec.json.encode(made), media_type="application/json")

    return routes


def _catalog() -> Catalog:
    from gateway.planning import Catalog

    return Catalog.builtin()


def _compared(heads: Mapping[str, Sequence[Head]]) -> dict[str, Divergence]:
    return {name: divergence(some) for name, some in heads.items()}
