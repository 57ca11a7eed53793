"""Admin endpoints of the index, its own and what replicas share: `prefix-gateway index` calls them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from gateway.api.knowledge import Knowledge
from gateway.api.verifying import Verifier
from gateway.index.replication.verify import Audit
from gateway.types import WorkerId


def index_routes(knowledge: Knowledge, verifier: Verifier) -> APIRouter:
    routes = APIRouter()

    @routes.post("/admin/index/verify", tags=["index"])
    async def sound(request: Request) -> dict[str, str]:
        """Recomputes the whole index from what each worker holds, some seconds a million blocks, between
        requests and beside events. One run at a time, of this and of the shared one; ends with its client."""
        await verifier.run(request.receive, verifier.sound)
        return {"status": "sound"}

    @routes.get("/admin/index/shared", tags=["index"])
    async def stats() -> dict[str, Any]:
        """The index, the state of Redis, and who writes and who mirrors each worker here."""
        return knowledge.stats()

    @routes.post("/admin/index/shared/verify", tags=["index"])
    async def verify(request: Request) -> dict[str, Any]:
        """The same, and then sets this replica's index against Redis, worker by worker, and Redis' records
        against each other. Takes seconds a million blocks, and waits for each worker to stand still."""

        async def both() -> list[Audit]:
            await verifier.sound()
            return await knowledge.verify()

        audits = await verifier.run(request.receive, both)
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
