"""Admin endpoints of the index that replicas share: `prefix-gateway index` calls them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.knowledge import Knowledge
from gateway.types import WorkerId


def index_routes(knowledge: Knowledge) -> APIRouter:
    routes = APIRouter()

    @routes.get("/admin/index/shared", tags=["index"])
    async def stats() -> dict[str, Any]:
        """The index, the state of Redis, and who writes and who mirrors each worker here."""
        return knowledge.stats()

    @routes.post("/admin/index/shared/verify", tags=["index"])
    async def verify() -> dict[str, Any]:
        """Sets this replica's index against Redis, worker by worker, and Redis' records against each other.
        Takes seconds a million blocks, and waits for each worker to stand still."""
        audits = await knowledge.verify()
        clean = all(
            audit.state == "clean" or (audit.state == "empty" and not audit.extra) for audit in audits
        )
        return {"clean": clean, "workers": [asdict(audit) for audit in audits]}

    @routes.delete("/admin/index", tags=["index"])
    async def clear(worker: Annotated[str, Query()]) -> dict[str, str]:
        """All that is known of a worker is void, for every replica: a new epoch. Its engine's cache stays."""
        await knowledge.clear(WorkerId(worker))
        return {"worker": worker}

    return routes
