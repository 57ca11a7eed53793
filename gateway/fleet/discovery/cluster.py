"""The API server, through `kubernetes_asyncio`: credentials, TLS and token rotation are its part; a watch's
bytes are split here, since a pod's JSON may be longer than a line that the library takes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import DiscoveryError
from gateway.fleet.discovery.objects import JsonObject
from gateway.fleet.discovery.watch import Change

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

WATCH_S = 240
"""A watch is ended and taken up again so often: what keeps half-open connections short."""
QUIET_S = 90.0
"""Bookmarks come about once a minute: a connection that is silent for longer is taken for dead."""
LIST_S = 15.0
CONNECT_S = 5.0
LONGEST_LINE = 8 * 1024 * 1024
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Query:
    """Which objects. `resource`: ``pods`` or ``endpointslices``. An empty namespace is the gateway's own."""

    resource: str
    selector: str
    namespace: str = ""
    kubeconfig: Path | None = None
    """None: the service account of the pod that this process runs in."""


class ApiServer:
    """A `Cluster`. Connects at its first call."""

    def __init__(self, query: Query, *, watch_s: float = WATCH_S, quiet_s: float = QUIET_S) -> None:
        self._query = query
        self._watch_s = watch_s
        self._quiet_s = quiet_s
        self._client: ApiClient | None = None
        self._namespace = query.namespace

    async def list(self) -> tuple[list[JsonObject], str]:
        response = await self._get({}, timeout=LIST_S)
        try:
            answer = _json(await self._read(response))
        finally:
            response.release()
        version = (answer.get("metadata") or {}).get("resourceVersion")
        items = answer.get("items") or []
        if not version or not isinstance(items, list):
            raise DiscoveryError("the API server's list has no resourceVersion or no items")
        return items, str(version)

    async def watch(self, version: str) -> AsyncGenerator[Change]:
        # the server ends the stream after timeoutSeconds
        ask = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": f"{self._watch_s:.0f}",
        }
        response = await self._get(ask, timeout=self._quiet_s)
        try:
            yield Change("BEGUN", {})
            pending = b""
            while chunk := await self._chunk(response):
                pending += chunk
                *lines, pending = pending.split(b"\n")
                if len(pending) > LONGEST_LINE:
                    raise DiscoveryError("a change of the API server is too long to be one")
                for line in lines:
                    if line.strip():
                        yield _change(_json(line))
        finally:
            response.close()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _get(self, params: dict[str, str], *, timeout: float) -> Any:
        """An answer whose body is still to be read; `timeout` bounds the wait for each part of it."""
        import aiohttp

        client = self._client or await self._connect()
        core = self._query.resource == "pods"
        root = "/api/v1" if core else "/apis/discovery.k8s.io/v1"
        path = f"{root}/namespaces/{self._namespace}/{self._query.resource}"
        with _mapped():
            response: Any = await client.call_api(
                path,
                "GET",
                query_params=[("labelSelector", self._query.selector), *params.items()],
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=timeout),
            )
        if response.status != 200:
            try:
                body = await self._read(response)
            finally:
                response.release()
            raise _refusal(response.status, body, f"{self._query.resource} of {self._namespace}")
        return response

    async def _read(self, response: Any) -> bytes:
        with _mapped():
            body: bytes = await response.read()
        return body

    async def _chunk(self, response: Any) -> bytes:
        with _mapped():
            chunk: bytes = await response.content.readany()
        return chunk

    async def _connect(self) -> ApiClient:
        """Imported here: the library takes a second to load, and most gateways don't need it."""
        from kubernetes_asyncio import client, config

        settings = client.Configuration()
        try:
            if self._query.kubeconfig is None:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            else:
                loader = await config.load_kube_config(
                    config_file=str(self._query.kubeconfig),
                    client_configuration=settings,
                    persist_config=False,
                )
                context = (loader.current_context or {}).get("context") or {}
                self._namespace = self._namespace or context.get("namespace", "")
        except (config.ConfigException, OSError) as error:
            raise DiscoveryError(f"no way to the API server: {error}") from error
        self._namespace = self._namespace or _own_namespace()
        self._client = client.ApiClient(configuration=settings)
        return self._client


class _mapped:  # noqa: N801 - a context manager, read as a verb
    """The library's errors, and those of the HTTP client under it, as ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import aiohttp
        from kubernetes_asyncio.client.exceptions import ApiException

        if isinstance(error, aiohttp.ClientError | ApiException | TimeoutError | OSError):
            text = str(error) or type(error).__name__
            raise DiscoveryError(f"the API server can't be reached: {text}") from error


def _change(line: JsonObject) -> Change:
    kind, item = str(line.get("type", "")), line.get("object") or {}
    if kind == "ERROR":
        # an error inside a stream is a Status object of its own
        raise _refusal(int(item.get("code") or 0), msgspec.json.encode(item), "the watch")
    return Change(kind, item)


def _refusal(status: int, body: bytes, what: str) -> DiscoveryError:
    try:
        said = str(_json(body).get("message") or "")
    except DiscoveryError:
        said = ""
    if status == 410:
        return DiscoveryError(f"{what}: {said or 'history is gone'}", expired=True)
    hint = ""
    if status == 403:
        hint = "; its Role must allow list and watch"
    elif status == 401:
        hint = "; its service account token is not accepted"
    return DiscoveryError(f"{what}: the API server answers {status}: {said}{hint}")


def _json(data: bytes) -> JsonObject:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DiscoveryError("the API server's answer is not JSON") from error
    if not isinstance(value, dict):
        raise DiscoveryError("the API server's answer is no JSON object")
    return value


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError as error:
        raise DiscoveryError("which namespace? Outside of a pod, give --kubernetes-namespace") from error
