"""One shape for every error of the admin port, the one that the API itself has: `{"error": {…}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gateway.api.errors import error_answer
from gateway.errors import ConfigError, GatewayError, InvalidRequest, MethodNotAllowed, NotFound

_INVALID = 422
"""What a field of a wrong value is answered with."""


class Fault(BaseModel):
    message: str
    type: str
    param: str | None
    """The field or parameter that is meant."""
    code: str | None


class Refused(BaseModel):
    error: Fault


def in_one_shape(app: FastAPI) -> None:
    """Also what the framework itself refuses: unknown paths, wrong methods, fields that don't validate."""

    @app.exception_handler(GatewayError)
    async def _on_error(_: Request, error: GatewayError) -> Response:
        return _answer(
            InvalidRequest(error.message, param=error.param) if isinstance(error, ConfigError) else error
        )

    @app.exception_handler(RequestValidationError)
    async def _on_invalid(_: Request, invalid: RequestValidationError) -> Response:
        if isinstance(invalid.body, bytes):  # the framework parses what says that it is JSON
            error = InvalidRequest("the body is not declared as JSON: send `content-type: application/json`")
            error.status = _INVALID
            return _answer(error)
        return _answer(invalid_request(invalid.errors()))

    @app.exception_handler(HTTPException)
    async def _on_http(request: Request, refused: HTTPException) -> Response:
        asked = f"{request.method} {request.url.path}"
        if refused.status_code == 404:
            return _answer(NotFound(f"there is no {asked}; /openapi.json lists what there is"))
        if refused.status_code == 405:
            return _answer(MethodNotAllowed(f"{asked}: this path has other methods"), refused.headers)
        error = GatewayError(str(refused.detail))
        error.status = refused.status_code
        return _answer(error, refused.headers)


def invalid_request(errors: Any) -> InvalidRequest:
    """From pydantic's errors, at least one: the first one's field is named, all are told."""
    told = [_told(one) for one in errors]
    error = InvalidRequest("; ".join(message for _, message in told), param=told[0][0])
    error.status = _INVALID
    return error


def _told(one: Mapping[str, Any]) -> tuple[str | None, str]:
    """(field, message) of one error. Its place begins with the part of the request: body, query…"""
    if one["type"] == "json_invalid":
        why = one.get("ctx", {}).get("error", "")
        return None, f"the request's body is not valid JSON: {why} (character {one['loc'][-1]})"
    part, *path = (str(step) for step in one["loc"])
    if not path:
        return None, f"{part}: {one['msg']}"
    name = ".".join(path)
    return name, f"{name}: {one['msg']}"


def _answer(error: GatewayError, more: Mapping[str, str] | None = None) -> Response:
    answer = error_answer(error)
    headers = {k.decode(): v.decode() for k, v in answer.headers}
    return Response(answer.body, status_code=answer.status, headers={**headers, **(more or {})})
