"""An API server's double that speaks the protocol of lists and watches over real HTTP: versions that grow by
one with every change, streams of JSON lines, bookmarks, 410 Gone for history that is no longer kept, label
selectors, bearer tokens, Status objects for every refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
import yaml

TOKEN = "a-service-account-token"
Object = dict[str, Any]


@dataclass
class ApiServer:
    """Change the state through `put`, `delete`, `compact`; break it through `refuse` and `hang_up`."""

    port: int
    objects: dict[str, Object] = field(default_factory=dict)
    version: int = 100
    history: list[tuple[int, str, Object]] = field(default_factory=list)
    oldest: int = 100
    """Watches from before it are answered 410."""
    refuse: int | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    open_watches: int = 0
    closed: bool = False
    _life: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, folder: Path, *, token: str = TOKEN, namespace: str = "chat") -> Path:
        path = folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}
            ],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def put(self, item: Object) -> None:
        name = item["metadata"]["name"]
        self._record("MODIFIED" if name in self.objects else "ADDED", item)
        self.objects[name] = item

    def delete(self, name: str) -> None:
        self._record("DELETED", self.objects.pop(name))

    def bookmark(self) -> None:
        self.version += 1
        mark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}}
        self.history.append((self.version, "BOOKMARK", mark))
        self._wake()

    def compact(self) -> None:
        """Forgets all history: who watches from before now has to list anew."""
        self.version += 1
        self.oldest = self.version
        self.history.clear()

    def hang_up(self) -> None:
        """Ends all open streams, as a restarted API server or load balancer does."""
        self._life += 1
        self._wake()

    def watches(self) -> list[dict[str, str]]:
        return [request for request in self.requests if request.get("watch") == "true"]

    def lists(self) -> list[dict[str, str]]:
        return [request for request in self.requests if "watch" not in request]

    def _record(self, kind: str, item: Object) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, json.loads(json.dumps(item))))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        query = {k: v[0] for k, v in parse_qs(scope["query_string"].decode()).items()}
        query["path"] = scope["path"]
        self.requests.append(query)
        headers = dict(scope["headers"])
        if headers.get(b"authorization") != f"Bearer {TOKEN}".encode():
            await _answer(send, 401, _status(401, "Unauthorized"))
        elif self.refuse is not None:
            await _answer(send, self.refuse, _status(self.refuse, "no"))
        elif not scope["path"].endswith(("/namespaces/chat/pods", "/namespaces/chat/endpointslices")):
            await _answer(send, 404, _status(404, "the server could not find the requested resource"))
        elif query.get("watch") == "true":
            self.open_watches += 1
            await self._watch(query, send)
            self.open_watches -= 1
        else:
            selected = [o for o in self.objects.values() if _selected(o, query)]
            listing = {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": selected}
            await _answer(send, 200, listing)

    async def _watch(self, query: dict[str, str], send: Any) -> None:
        version, life = int(query["resourceVersion"]), self._life
        await send({"type": "http.response.start", "status": 200, "headers": [_JSON]})
        while True:
            changed = self._changed
            if version < self.oldest:
                # the real server says so inside the stream, and ends it
                gone = _status(410, f"too old resource version: {version} ({self.oldest})", "Expired")
                await _line(send, {"type": "ERROR", "object": gone})
                break
            for number, kind, item in list(self.history):
                if number > version and (kind == "BOOKMARK" or _selected(item, query)):
                    await _line(send, {"type": kind, "object": item})
            version = max(version, self.version)
            if self._life != life or self.closed:
                break
            await changed.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_JSON = (b"content-type", b"application/json")


def _status(code: int, message: str, reason: str = "") -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _selected(item: Object, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels", {})
    wanted = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    return all(labels.get(key) == value for key, _, value in wanted)


async def _answer(send: Any, status: int, body: Object) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [_JSON]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def _line(send: Any, event: Object) -> None:
    """In two pieces: a stream's chunks are not its lines."""
    data = json.dumps(event).encode() + b"\n"
    for part in (data[:20], data[20:]):
        await send({"type": "http.response.body", "body": part, "more_body": True})


class _Server(uvicorn.Server):
    def capture_signals(self) -> Any:
        import contextlib

        return contextlib.nullcontext()


@asynccontextmanager
async def api_server(port: int) -> AsyncIterator[ApiServer]:
    state = ApiServer(port)
    async with serving(state):
        yield state


@asynccontextmanager
async def serving(state: ApiServer) -> AsyncIterator[None]:
    """May be left and entered again: the API server is away, and comes back as it was."""
    config = uvicorn.Config(
        state, host="127.0.0.1", port=state.port, log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    state.closed = False
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event)
        await asyncio.sleep(0.005)
    try:
        yield
    finally:
        state.closed = True
        state.hang_up()
        server.should_exit = True
        await task


def pod(
    name: str,
    ip: str | None,
    *,
    ready: bool = True,
    annotations: dict[str, str] | None = None,
    ports: dict[str, int] | None = None,
    terminating: bool = False,
    labels: dict[str, str] | None = None,
    uid: str | None = None,
) -> Object:
    """As the API server gives it, in the fields that are read."""
    meta: Object = {
        "name": name,
        "namespace": "chat",
        "uid": uid or f"uid-{name}",
        "labels": labels or {"app": "vllm"},
    }
    if annotations:
        meta["annotations"] = annotations
    if terminating:
        meta["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    declared = {"http": 8000, "kv-events": 5557, "kv-replay": 5558} if ports is None else ports
    status: Object = {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "True"}
            if ready
            else {
                "type": "Ready",
                "status": "False",
                "reason": "ContainersNotReady",
                "message": "containers with unready status: [engine]",
            }
        ],
    }
    if ip is not None:
        status["podIP"] = ip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "ports": [
                        {"name": n, "containerPort": p, "protocol": "TCP"} for n, p in declared.items()
                    ],
                }
            ]
        },
        "status": status,
    }
