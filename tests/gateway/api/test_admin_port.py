"""The admin port of a whole gateway: what it refuses, and how it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.gateway.api.whole import whole

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def admin_of(port: int, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The admin port of a gateway that declares the model ``m``; its only worker does not exist."""
    given = {"models": ("m",), **settings}
    async with whole(f"http://127.0.0.1:{port}", ready=0, **given) as gateway:
        transport = httpx.ASGITransport(gateway.app.admin)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param", "says"),
    [
        ("PUT", "/admin/policy", b'{"policy": 3}', 422, "policy", "valid string"),
        ("PUT", "/admin/policy", b'{"policy": "round_robin", "modle": "m"}', 422, "modle", "not permitted"),
        ("PUT", "/admin/policy", b"{", 422, None, "not valid JSON"),
        ("PUT", "/admin/policy", b"", 422, None, "body: "),
        ("PUT", "/admin/policy", b'{"policy": "nonsense"}', 400, None, "nonsense"),
        (
            "PUT",
            "/admin/policy",
            b'{"policy": "estimated_ttft", "params": {"affinity_weight": -1}}',
            400,
            "affinity_weight",
            "affinity_weight=-1 is no number from 0 to 1,000,000",
        ),
        (
            "PUT",
            "/admin/policy",
            b'{"policy": "additive", "params": {"temperature": NaN}, "model": "m"}',
            400,
            "temperature",
            "temperature=nan is no number from 0 to 1,000,000",
        ),
        (
            "PUT",
            "/admin/policy",
            b'{"policy": "additive", "params": {"overlap_weight": 1e308}}',
            400,
            "overlap_weight",
            "policy 'additive': overlap_weight=1e+308 is no number from 0 to 1,000,000",
        ),
        (
            "PUT",
            "/admin/policy",
            b'{"policy": "consistent_hash", "params": {"points": 2000000}}',
            400,
            "points",
            "policy 'consistent_hash': points=2000000 is no whole number from 1 to 256",
        ),
        (
            "POST",
            "/admin/workers/weight",
            b'{"id": "w", "weight": 1e308}',
            400,
            None,
            "weight 1e+308: a number from 0.001 to 1,000 is wanted",
        ),
        ("POST", "/admin/workers/weight", b'{"id": "w", "weight": "fast"}', 422, "weight", "valid number"),
        ("DELETE", "/admin/workers", b"", 422, "id", "required"),
        ("DELETE", "/admin/workers?id=w", b"", 404, "id", "no worker 'w'"),
        ("GET", "/admin/nothing", b"", 404, None, "there is no GET /admin/nothing"),
        ("DELETE", "/health", b"", 405, None, "other methods"),
        ("POST", "/admin/explain", b'{"model": ', 400, None, "not valid JSON"),
        ("POST", "/admin/explain", b"[]", 400, None, "JSON object"),
        ("POST", "/admin/explain", b'{"model": "x", "messages": []}', 400, "messages", "`messages` is empty"),
        ("POST", "/admin/explain", b'{"model": "x", "prompt": ""}', 400, "prompt", "`prompt` is empty"),
        ("POST", "/admin/explain", b'{"model": "x"}', 400, "messages", "neither `messages`"),
    ],
)
async def test_every_error_has_one_shape(
    free_port: Callable[[], int], method: str, path: str, body: bytes, status: int, param: Any, says: str
) -> None:
    async with admin_of(free_port()) as admin:
        answer = await admin.request(method, path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("declared", [{}, {"content-type": "application/x-www-form-urlencoded"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/admin/policy"), ("POST", "/admin/workers"), ("POST", "/admin/workers/drain")],
)
async def test_a_body_that_is_not_declared_as_json_is_told_so(
    free_port: Callable[[], int], method: str, path: str, declared: dict[str, str]
) -> None:
    async with admin_of(free_port()) as admin:
        answer = await admin.request(method, path, content=b'{"policy": "product"}', headers=declared)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == (
        "the body is not declared as JSON: send `content-type: application/json`"
    )


async def test_the_api_description_knows_that_shape_alone(free_port: Callable[[], int]) -> None:
    async with admin_of(free_port()) as admin:
        told = (await admin.get("/openapi.json")).json()
        assert (await admin.put("/health")).headers["allow"] == "GET"
    assert "HTTPValidationError" not in told["components"]["schemas"]
    assert told["paths"]["/admin/explain"]["post"]["requestBody"]["required"] is True


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/ready", 503), ("/metrics", 200)])
async def test_who_only_looks_may_ask_by_head(path: str, status: int, free_port: Callable[[], int]) -> None:
    async with admin_of(free_port()) as admin:
        assert (await admin.head(path)).status_code == (await admin.get(path)).status_code == status


async def test_a_second_policy_may_watch(free_port: Callable[[], int]) -> None:
    async with admin_of(free_port(), shadow_policy="least_requests") as admin:
        watched = {"*": "estimated_ttft", "shadow:*": "least_requests"}
        assert (await admin.get("/admin/policy")).json() == watched
        own = {"policy": "round_robin", "model": "m", "shadow": "product"}
        told = await admin.put("/admin/policy", json=own)
        assert told.json() == watched | {"m": "round_robin", "shadow:m": "product"}
        refused = await admin.put("/admin/policy", json={**own, "shadow": "nonsense"})
        assert refused.status_code == 400
        # who says nothing of a shadow has none
        plain = await admin.put("/admin/policy", json={"policy": "product"})
        assert plain.json() == {"*": "product", "m": "round_robin", "shadow:m": "product"}
        gone = await admin.delete("/admin/policy", params={"model": "m"})
        assert gone.json() == {"*": "product"}


async def test_parameters_that_were_given_are_shown_and_logged(
    free_port: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.api.admin")
    async with admin_of(free_port(), policy_params={"affinity_weight": "2"}) as admin:
        given = {"*": "estimated_ttft", "params:*": {"affinity_weight": 2.0}}
        assert (await admin.get("/admin/policy")).json() == given
        own = {"policy": "additive", "params": {"temperature": 0.5}, "model": "m", "shadow": "product"}
        own_given = {"m": "additive", "shadow:m": "product", "params:m": {"temperature": 0.5}}
        assert (await admin.put("/admin/policy", json=own)).json() == given | own_given
        told = await admin.put("/admin/policy", json={"policy": "estimated_ttft"})
        assert told.json() == {"*": "estimated_ttft"} | own_given, "its defaults again"
        assert (await admin.delete("/admin/policy", params={"model": "m"})).json() == {"*": "estimated_ttft"}
    told = [
        (r.message, {k: getattr(r, k, None) for k in ("model", "policy", "params")}) for r in caplog.records
    ]
    assert told == [
        (
            "a policy was set by an operator",
            {"model": "m", "policy": "additive", "params": {"temperature": 0.5}},
        ),
        ("a policy was set by an operator", {"model": None, "policy": "estimated_ttft", "params": {}}),
        ("a model's policy was reset by an operator", {"model": "m", "policy": None, "params": None}),
    ]


async def test_a_weight_that_was_set_is_shown_and_logged(
    free_port: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.api.admin")
    async with admin_of(free_port()) as admin:
        (worker,) = (await admin.get("/admin/workers")).json()["workers"]
        assert worker["weight"] == 1.0
        name = worker["id"]
        await admin.post("/admin/workers/weight", json={"id": name, "weight": 2.5})
        await admin.post("/admin/workers/drain", json={"id": name})
        (worker,) = (await admin.get("/admin/workers")).json()["workers"]
        assert worker["weight"] == 2.5
        refused = await admin.post("/admin/workers/weight", json={"id": "nobody", "weight": 2.5})
        assert refused.status_code == 404
    told = [(r.worker, r.change, getattr(r, "weight", None)) for r in caplog.records]  # type: ignore[attr-defined]
    assert told == [(name, "weighted", 2.5), (name, "drained", None)]


async def test_a_model_gets_a_policy_of_its_own_and_loses_it_again(free_port: Callable[[], int]) -> None:
    async with admin_of(free_port(), aliases={"other": "m", "sqlbot": "m:sql"}) as admin:
        own = {"policy": "round_robin", "model": "m"}
        assert (await admin.put("/admin/policy", json=own)).json() == {
            "*": "estimated_ttft",
            "m": "round_robin",
        }
        for name in ("nobody", "other", "sqlbot", "m:sql", ""):
            refused = await admin.put("/admin/policy", json={**own, "model": name})
            assert refused.status_code == 404
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("model_not_found", "model")
            assert error["message"] == f"model {name!r} is no base model; there are: m"
        gone = await admin.delete("/admin/policy", params={"model": "m"})
        assert (gone.status_code, gone.json()) == (200, {"*": "estimated_ttft"})
        again = await admin.delete("/admin/policy", params={"model": "m"})
        assert (again.status_code, again.json()["error"]["param"]) == (404, "model")
        default = await admin.delete("/admin/policy", params={"model": "*"})
        assert default.status_code == 404
        assert (await admin.get("/admin/policy")).json() == {"*": "estimated_ttft"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (None, {}, "messages"),
        (None, {"body": {"model": "m", "prompt": "x"}}, "messages"),
        (None, {"model": "m", "messages": []}, "messages"),
        ("/v1/completions", {"model": "m", "messages": []}, "prompt"),
        ("/v1/chat/completions", {"model": "m", "prompt": "x"}, "messages"),
        ("/v1/messages", {"model": "m"}, "messages"),
        ("/v1/responses", {"model": "m"}, "input"),
        ("/v1/nothing", {"model": "m", "prompt": "x"}, "path"),
    ],
)
async def test_a_body_without_a_prompt_is_not_explained(
    free_port: Callable[[], int], path: str | None, body: dict[str, Any], param: str
) -> None:
    async with admin_of(free_port()) as admin:
        params = {} if path is None else {"path": path}
        answer = await admin.post("/admin/explain", json=body, params=params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert f"`{param}`" in answer.json()["error"]["message"] or param == "path"
