"""The public port: plain ASGI, one table of paths, no framework on the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.api.client_watch import Receive
from gateway.api.endpoints import EndpointTable
from gateway.api.errors import Answer, error_answer, json_answer
from gateway.api.gate import Gate, OpenGate
from gateway.api.headers import new_request_id, request_id
from gateway.api.pages import Pages
from gateway.api.serve import ProxyService
from gateway.auth.keys import ApiKey
from gateway.errors import Forbidden, MethodNotAllowed, ModelNotFound, NotFound, Unauthorized, brief
from gateway.types import SERVER
from gateway.upstream.headers import value_of
from gateway.upstream.outlet import Send

ModelEntries = Callable[[], Iterable[Mapping[str, Any]]]
"""The `/v1/models` entries of all workers, each as its engine gave it; of equal ids the first counts."""
Readiness = Callable[[], str | None]
"""None when ready, else why not, in words."""

_READ = ("GET", "HEAD")
_KEYLESS = ("/health", "/ready")


class PublicApp:
    """`/v1/models`, `/health` and `/ready` are answered here; the endpoints of the table are proxied."""

    def __init__(
        self,
        service: ProxyService,
        *,
        models: ModelEntries,
        readiness: Readiness,
        endpoints: EndpointTable | None = None,
        gate: Gate | OpenGate | None = None,
        pages: Pages | None = None,
        new_id: Callable[[], str] = new_request_id,
    ) -> None:
        self._service = service
        self._models = models
        self._readiness = readiness
        self._endpoints = endpoints or EndpointTable()
        self._gate = gate if gate is not None else OpenGate()
        self._pages = pages if pages is not None else Pages()
        self._new_id = new_id

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _other(scope, receive, send)
            return
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root:
            path = path.removeprefix(root)
        method: str = scope["method"]
        endpoint = self._endpoints.exact.get(path) or self._endpoints.find(path)
        if endpoint is not None and method in endpoint.methods:
            await self._service(endpoint, scope, receive, send)
            return
        try:
            self._pages.check(dict(reversed(scope["headers"])))
            # what lives here and needs no key is asked for by load balancers, and tells nothing
            key = None if path in _KEYLESS else await self._gate.identify(scope["headers"])
            answer = self._own_answer(method, path, endpoint.methods if endpoint is not None else None, key)
        except (Forbidden, Unauthorized) as error:
            answer = error_answer(error)
        given = value_of(scope["headers"], b"x-request-id")
        answer.headers.append((b"x-request-id", request_id(given, self._new_id)))
        if answer.status != 204:
            answer.headers.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})

    def _own_answer(
        self, method: str, path: str, proxied: tuple[str, ...] | None, key: ApiKey | None
    ) -> Answer:
        methods = proxied or (_READ if self._is_own(path) else None)
        if methods is None:
            return error_answer(NotFound(f"no such path: {method} {path}"))
        allow = [(b"allow", ", ".join((*methods, "OPTIONS")).encode())]
        if method == "OPTIONS":
            return Answer(204, b"", allow)
        if proxied is not None or method not in _READ:
            answer = error_answer(MethodNotAllowed(f"{path} takes {' or '.join(methods)}, not {method}"))
            answer.headers += allow
            return answer
        if path == "/health":
            return json_answer(200, {"status": "ok", "server": SERVER})
        if path == "/ready":
            return self._ready()
        entries = self._entries(key)
        return _list_models(entries) if path == "/v1/models" else _one_model(entries, path)

    @staticmethod
    def _is_own(path: str) -> bool:
        return path in ("/health", "/ready", "/v1/models") or path.startswith("/v1/models/")

    def _ready(self) -> Answer:
        reason = self._readiness()
        if reason is None:
            return json_answer(200, {"status": "ready"})
        return json_answer(503, {"status": "not ready", "reason": reason})

    def _entries(self, key: ApiKey | None) -> dict[str, Mapping[str, Any]]:
        """Those that `key` may use: what it may not use is not there for it."""
        entries: dict[str, Mapping[str, Any]] = {}
        for entry in self._models():
            name = str(entry.get("id"))
            if key is None or key.serves(name):
                entries.setdefault(name, entry)
        return entries


def _list_models(entries: Mapping[str, Mapping[str, Any]]) -> Answer:
    return json_answer(200, {"object": "list", "data": list(entries.values())})


def _one_model(entries: Mapping[str, Mapping[str, Any]], path: str) -> Answer:
    name = path.removeprefix("/v1/models/")
    if name in entries:
        return json_answer(200, entries[name])
    known = ", ".join(sorted(entries)) or "none"
    error = ModelNotFound(f"the model {brief(name)!r} does not exist; there are: {known}", param="model")
    return error_answer(error)


async def _other(scope: Any, receive: Receive, send: Send) -> None:
    """What an ASGI server may say beside requests: it starts and stops, or a WebSocket knocks."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return
    while scope["type"] == "lifespan":
        stage = (await receive())["type"]
        await send({"type": f"{stage}.complete"})
        if stage == "lifespan.shutdown":
            return
