"""`/docs` of the admin port: its API as one plain page, without a script or anything from outside.

What a page of Swagger or ReDoc shows comes from a CDN, which many gateways' machines can't reach.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, StrictUndefined, Template

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def add_reference(app: FastAPI) -> None:
    """Serves `/docs`, made from what the app says of itself in `/openapi.json`."""
    page = cache(_page)  # compiled for the first who asks

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page().render(described(app.openapi())), headers=_HEADERS)


def _page() -> Template:
    source = (files("gateway.api.ui") / "static" / "docs.html").read_text("utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)


def described(openapi: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of an OpenAPI document: operations by their first tag, and schemas by name."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            group = groups.setdefault(operation.get("tags", ["more"])[0], [])
            group.append(
                {
                    "id": operation["operationId"],
                    "call": f"{method.upper()} {path}",
                    "text": operation.get("description", ""),
                    "parameters": operation.get("parameters", []),
                    "body": _content(operation.get("requestBody", {})),
                    "answers": [
                        (code, answer.get("description", ""), _content(answer))
                        for code, answer in operation["responses"].items()
                    ],
                }
            )
    schemas = openapi.get("components", {}).get("schemas", {})
    return {"title": openapi["info"]["title"], "version": openapi["info"]["version"], "groups": groups,
            "schemas": {name: _fields(schema) for name, schema in schemas.items()}}  # fmt: skip


def _content(holder: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a body; None where there is none."""
    for medium in holder.get("content", {}).values():
        schema: dict[str, Any] = medium.get("schema", {})
        return schema
    return None


def _fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "schema": field, "required": name in required}
        for name, field in schema.get("properties", {}).items()
    ]
