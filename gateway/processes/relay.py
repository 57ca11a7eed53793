"""The admin port of a process, reached over its Unix socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx

from gateway.errors import Unavailable
from gateway.processes.journal import Write
from gateway.processes.silence import Silence

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

TIMEOUT_S = 30.0
_PROMPT, _PATIENT = httpx.Timeout(TIMEOUT_S), httpx.Timeout(TIMEOUT_S, read=None)
_OURS = frozenset(
    (b"host", b"authorization", b"connection", b"content-length", b"transfer-encoding", b"keep-alive")
)
_HOP = frozenset((b"connection", b"transfer-encoding", b"keep-alive", b"date"))


class Silent(Unavailable):
    """The process is there, and does not answer."""


class Line:
    """`name` is the process's, in URLs; for one in `silence` nobody waits long."""

    def __init__(self, path: str, name: str, silence: Silence) -> None:
        self._path = Path(path)
        self.name = name
        self.url = f"http://{name}"
        self.transport = _Heard(path, silence)
        self._client = httpx.AsyncClient(transport=self.transport, base_url=self.url, timeout=_PROMPT)

    async def get(self, path: str) -> httpx.Response:
        """Raises Unavailable."""
        return await self._ask("GET", path, {}, b"")

    async def write(self, write: Write, *, patient: bool = False) -> httpx.Response:
        """Raises Unavailable. `patient`: it may take as long as it takes, if only the process says
        something."""
        within = _PATIENT if patient else _PROMPT
        return await self._ask(write.method, write.path, write.query, write.body, within)

    async def pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """The whole request there and the answer back, piece by piece. Raises Unavailable, as long as nothing
        was sent."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _OURS]
        url = httpx.URL(self.url, raw_path=scope["raw_path"] + _query(scope))
        request = self._client.build_request(
            scope["method"], url, headers=headers, content=body, timeout=_PATIENT
        )
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            raise self._away(error) from error
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_leave_with, receive, tasks.cancel_scope)
                await _copy(answer, send)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()

    async def close(self) -> None:
        """Once the process has ended: its socket's name goes too."""
        await self._client.aclose()
        self._path.unlink(missing_ok=True)

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes,
        within: httpx.Timeout = _PROMPT,
    ) -> httpx.Response:
        headers = {"content-type": "application/json"} if body else {}
        try:
            return await self._client.request(
                method, path, params=query, content=body, headers=headers, timeout=within
            )
        except httpx.TransportError as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> Unavailable:
        kind = Silent if isinstance(error, httpx.TimeoutException) else Unavailable
        return kind(f"{self.name} does not answer ({type(error).__name__})")


class _Heard(httpx.AsyncBaseTransport):
    def __init__(self, path: str, silence: Silence) -> None:
        self._inner = httpx.AsyncHTTPTransport(uds=path)
        self._silence = silence

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._silence.outlast(self._inner.handle_async_request(request))
        except TimeoutError as error:
            raise httpx.ReadTimeout("it says nothing", request=request) from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def _query(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    return b"?" + query if query else b""


async def _copy(answer: httpx.Response, send: Send) -> None:
    headers = [(name.lower(), value) for name, value in answer.headers.raw]
    await send(
        {
            "type": "http.response.start",
            "status": answer.status_code,
            "headers": [(name, value) for name, value in headers if name not in _HOP],
        }
    )
    async for piece in answer.aiter_raw():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _leave_with(receive: Receive, scope: anyio.CancelScope) -> None:
    """A page that was closed must not be written to for ever."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
