"""The admin port: metrics, the fleet, the index, and `explain`. FastAPI, since none of it is hot."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ConfigDict, Field

from gateway import __version__
from gateway.api.admin_errors import Refused, in_one_shape
from gateway.api.body import parse_object
from gateway.api.exposition import exposition
from gateway.api.fleet_view import FleetView, WorkerView
from gateway.api.reference import add_reference
from gateway.errors import InvalidRequest, ModelNotFound, NotFound
from gateway.fleet.registry import Registry
from gateway.fleet.spec import worker_from
from gateway.fleet.worker import WorkerSpec
from gateway.prompt.base import Endpoint
from gateway.prompt.reader import read_prompt
from gateway.routing.explain import Explanation, explain
from gateway.routing.policy import Policy
from gateway.routing.router import Router
from gateway.routing.table import EVERY_MODEL
from gateway.types import SERVER, WorkerId

log = logging.getLogger(__name__)

Vet = Callable[[WorkerSpec], Awaitable[WorkerSpec]]
"""Raises Forbidden for an address where no worker may be; gives back what it has checked."""
Watch = Callable[[Policy, Policy, str], Policy]
"""(acting, watching, model) → the acting one, watched."""
MakePolicy = Callable[[str, dict[str, Any]], Policy]
"""(name, parameters) → policy. Raises ConfigError, which lists what there is."""


_ANY_BODY = {
    "requestBody": {
        "required": True,
        "description": "an OpenAI request body",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


class NewWorker(BaseModel):
    """The fields of a worker line: see `prefix-gateway serve --help`."""

    model_config = ConfigDict(extra="allow")
    url: str


class WorkerChange(BaseModel):
    id: str = Field(description="as listed: its URL, with #dpN for a data-parallel rank")


class WeightChange(WorkerChange):
    weight: float


class PolicyChange(BaseModel):
    model_config = ConfigDict(extra="forbid")
    policy: str
    params: dict[str, Any] = Field(default_factory=dict)
    model: str | None = Field(
        None, description="for one model; without it, for all that have none of their own"
    )
    shadow: str | None = Field(
        None,
        description="a policy that decides beside it, with its own defaults; only metrics see what. "
        "Without it nobody does from now on",
    )


class Workers(BaseModel):
    workers: list[WorkerView]


def create_admin(
    *,
    router: Router,
    registry: Registry,
    view: FleetView,
    metrics: CollectorRegistry,
    make_policy: MakePolicy,
    watch: Watch,
    vet: Vet,
    readiness: Callable[[], str | None],
    more: Sequence[APIRouter] = (),
) -> FastAPI:
    app = FastAPI(
        title="prefix-gateway admin", version=__version__, docs_url=None, redoc_url=None,
        responses={"4XX": {"model": Refused, "description": "refused; `param` names the field"}},
    )  # fmt: skip
    add_reference(app)
    in_one_shape(app)

    # who only looks whether they are there may ask by HEAD, as at the public port
    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", tags=["health"], response_class=Response)
    async def prometheus(request: Request) -> Response:
        """All metrics, in the text format that the scraper accepts."""
        text, content_type = await exposition(metrics, request.headers.get("accept", ""))
        return Response(text, media_type=content_type)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["health"])
    async def health() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok", "server": SERVER}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", tags=["health"])
    async def ready() -> JSONResponse:
        """503 with the reason while it should get no traffic."""
        reason = readiness()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    @app.get("/admin/workers", tags=["fleet"])
    async def workers() -> Workers:
        return Workers(workers=view.workers())

    @app.post("/admin/workers", tags=["fleet"], status_code=201)
    async def add_worker(worker: NewWorker) -> dict[str, str]:
        spec = await vet(worker_from(worker.model_dump()))
        return _done(True, registry.add(spec).id, "added")

    @app.delete("/admin/workers", tags=["fleet"])
    async def remove_worker(id: Annotated[str, Query()]) -> dict[str, str]:
        """Requests that it still serves end as they would have."""
        return _done(registry.remove(WorkerId(id)), id, "removed")

    @app.post("/admin/workers/drain", tags=["fleet"])
    async def drain(change: WorkerChange) -> dict[str, str]:
        """It finishes what it has and takes nothing new."""
        return _done(registry.drain(WorkerId(change.id)), change.id, "drained")

    @app.post("/admin/workers/resume", tags=["fleet"])
    async def resume(change: WorkerChange) -> dict[str, str]:
        return _done(registry.resume(WorkerId(change.id)), change.id, "resumed")

    @app.post("/admin/workers/weight", tags=["fleet"])
    async def weight(change: WeightChange) -> dict[str, str]:
        """Its speed against the others'; 1 leaves it to what is measured."""
        known = registry.set_weight(WorkerId(change.id), change.weight)
        return _done(known, change.id, "weighted", weight=change.weight)

    @app.get("/admin/models", tags=["fleet"])
    async def models() -> dict[str, Any]:
        """Every name that a request may give, its tokenizer, and who serves it."""
        return {"models": view.models()}

    @app.get("/admin/policy", tags=["routing"])
    async def policy() -> dict[str, str | dict[str, Any]]:
        """Policy by model; ``*`` is the default. ``shadow:`` and a model: who decides beside it. ``params:``
        and a model: the parameters that were given to its policy; others are its defaults."""
        return _policies(router)

    @app.put("/admin/policy", tags=["routing"])
    async def set_policy(change: PolicyChange) -> dict[str, str | dict[str, Any]]:
        """The next decision takes it. `model` is a base model: its adapters and aliases share its policy."""
        made = make_policy(change.policy, change.params)
        if change.model is not None:
            _check_model(change.model, registry)
        if change.shadow is not None:
            made = watch(made, make_policy(change.shadow, {}), change.model or EVERY_MODEL)
        router.policies.set(made, change.model, change.params)
        log.info("a policy was set by an operator", extra=change.model_dump())
        return _policies(router)

    @app.delete("/admin/policy", tags=["routing"])
    async def reset_policy(model: Annotated[str, Query()]) -> dict[str, str | dict[str, Any]]:
        """The model follows the default again."""
        own = sorted(router.policies.names().keys() - {EVERY_MODEL})
        if model not in own:
            listed = ", ".join(own) or "none"
            raise NotFound(
                f"model {model!r} has no policy of its own; those that have: {listed}", param="model"
            )
        router.policies.reset(model)
        log.info("a model's policy was reset by an operator", extra={"model": model})
        return _policies(router)

    @app.post("/admin/explain", tags=["routing"], openapi_extra=_ANY_BODY)
    async def explain_request(
        request: Request,
        path: Annotated[str | None, Query(description="API path; told from the body where not given")] = None,
    ) -> Explanation:
        """Where a request would go, and why the others lose. Sends and reserves nothing."""
        fields = parse_object(await request.body())
        endpoint = _endpoint(path, fields)
        _check_prompt(endpoint, path, fields)
        return await explain(router, read_prompt(endpoint, fields))

    @app.get("/admin/index", tags=["index"])
    async def index() -> dict[str, Any]:
        return asdict(view.index())

    for routes in more:
        app.include_router(routes)
    return app


def _policies(router: Router) -> dict[str, str | dict[str, Any]]:
    table = router.policies
    shadows = {f"shadow:{model}": name for model, name in table.shadows().items()}
    return {
        **table.names(),
        **shadows,
        **{f"params:{model}": dict(own) for model, own in table.params().items()},
    }


def _done(known: bool, worker: str, what: str, **more: Any) -> dict[str, str]:
    """`what` was done with it, for the log."""
    if not known:
        raise NotFound(f"no worker {worker!r}; GET /admin/workers lists them", param="id")
    log.info("a worker was changed by an operator", extra={"worker": worker, "change": what, **more})
    return {"id": worker}


def _check_model(model: str, registry: Registry) -> None:
    """Raises ModelNotFound where no decision would ever ask for this model's policy."""
    # an alias may stand for a name that nobody serves
    base = {name for name, target in registry.targets().items() if name == target.model}
    if model not in base:
        listed = ", ".join(sorted(base)) or "none yet"
        raise ModelNotFound(f"model {model!r} is no base model; there are: {listed}", param="model")


_PROMPT_FIELDS = {
    Endpoint.CHAT: ("messages",), Endpoint.MESSAGES: ("messages",), Endpoint.RESPONSES: ("input",),
    Endpoint.COMPLETIONS: ("prompt", "prompt_embeds"),
}  # fmt: skip


def _check_prompt(endpoint: Endpoint, path: str | None, fields: dict[str, Any]) -> None:
    """Raises InvalidRequest where there is nothing to explain: no engine would take such a body."""
    wanted = _PROMPT_FIELDS[endpoint]
    if any(fields.get(name) for name in wanted):
        return
    for name in wanted:
        if name in fields:
            raise InvalidRequest(f"`{name}` is empty: there is no prompt to explain", param=name)
    if path is None:
        raise InvalidRequest(
            "the body has neither `messages` (a chat) nor `prompt` (a completion); for another API give its "
            "path",
            param="messages",
        )
    raise InvalidRequest(f"a body for {path} needs `{wanted[0]}`", param=wanted[0])


def _endpoint(path: str | None, fields: dict[str, Any]) -> Endpoint:
    if path is None:
        return Endpoint.CHAT if "messages" in fields else Endpoint.COMPLETIONS
    try:
        return Endpoint(path)
    except ValueError:
        known = ", ".join(e.value for e in Endpoint)
        raise InvalidRequest(f"path {path!r} can't be explained; there are: {known}", param="path") from None
