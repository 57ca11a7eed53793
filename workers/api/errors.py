"""Errors of the API, in the shape vLLM gives them: `code` is the HTTP status, `param` names the field."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Root of what is answered as an error body."""

    status = 500
    type = "InternalServerError"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        }


class BadRequest(ApiError):
    """A request that can be read but not served: the caller can mend it."""

    status = 400
    type = "BadRequestError"


class InvalidBody(ApiError):
    """A body that is not JSON, or a field of the wrong type. vLLM gives these another type name."""

    status = 400
    type = "Bad Request"


class ModelNotFound(ApiError):
    status = 404
    type = "NotFoundError"


class ResponseNotFound(ApiError):
    status = 404
    type = "invalid_request_error"

    def __init__(self, identifier: str) -> None:
        super().__init__(f"Response with id '{identifier}' not found.", param="response_id")


class EngineFailed(ApiError):
    """The engine died under this request."""


def bad_value(message: str, param: str, value: object) -> BadRequest:
    return BadRequest(f"{message} (parameter={param}, value={value})", param=param)
