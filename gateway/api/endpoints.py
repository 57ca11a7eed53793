"""Which paths are proxied, and how each is read. One table, one proxy path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.api.errors import Dialect
from gateway.errors import ConfigError
from gateway.prompt.base import Endpoint


@dataclass(frozen=True, slots=True)
class ProxiedEndpoint:
    name: str
    """How it is called in metrics: its path, or the pattern that it fell under."""
    methods: tuple[str, ...] = ("POST",)
    prompt: Endpoint | None = None
    """How its prompt is read; None where the request goes by load alone."""
    generates: bool = False
    """A model's answer: usage is read from it, and fields that must not leave are taken out."""
    caches: bool = True
    """Its prompts may come to lie in an engine's prefix cache, so that a `cache_salt` means something."""
    ends_with_done: bool = False
    """A whole stream of it has a last event that says so."""
    dialect: Dialect = Dialect.OPENAI
    names_answers: bool = False
    """Its answers have names, by which later requests may ask for them."""


_DIALECTS = {Endpoint.RESPONSES: Dialect.RESPONSES, Endpoint.MESSAGES: Dialect.MESSAGES}


def _standard() -> list[ProxiedEndpoint]:
    generating = [
        ProxiedEndpoint(
            endpoint.value,
            prompt=endpoint,
            generates=True,
            ends_with_done=True,
            dialect=_DIALECTS.get(endpoint, Dialect.OPENAI),
            names_answers=endpoint is Endpoint.RESPONSES,
        )
        for endpoint in Endpoint
    ]
    counting = [
        ProxiedEndpoint("/v1/messages/count_tokens", caches=False, dialect=Dialect.MESSAGES),
        *(ProxiedEndpoint(path, caches=False) for path in ("/tokenize", "/detokenize")),
    ]
    by_name = ProxiedEndpoint(
        "/v1/responses/*",
        ("GET", "POST", "DELETE"),
        caches=False,
        dialect=Dialect.RESPONSES,
        names_answers=True,
    )
    by_load = (
        "/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score",
        "/score", "/pooling", "/classify", "/v1/audio/*",
    )  # fmt: skip
    return [*generating, *counting, by_name, *(ProxiedEndpoint(path) for path in by_load)]


class EndpointTable:
    """Finds the endpoint of a path: exact ones first, then patterns that end in ``*``."""

    def __init__(self, extra_paths: Iterable[str] = ()) -> None:
        """`extra_paths`: more paths or patterns, proxied by load with any method. Raises ConfigError."""
        self.exact: dict[str, ProxiedEndpoint] = {}
        """Those whose path is one, by it."""
        self._prefixes: list[tuple[str, ProxiedEndpoint]] = []
        for endpoint in _standard():
            self._add(endpoint)
        for path in extra_paths:
            if not path.startswith("/") or "*" in path[:-1]:
                raise ConfigError(f"proxied path {path!r} must start with / and may only end in *")
            self._add(ProxiedEndpoint(path, methods=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")))

    def _add(self, endpoint: ProxiedEndpoint) -> None:
        if endpoint.name.endswith("*"):
            self._prefixes.append((endpoint.name[:-1], endpoint))
        else:
            self.exact.setdefault(endpoint.name, endpoint)

    def find(self, path: str) -> ProxiedEndpoint | None:
        """`path` is decoded. One with dot segments could leave its pattern at the worker: it matches none."""
        endpoint = self.exact.get(path)
        if endpoint is not None:
            return endpoint
        for prefix, candidate in self._prefixes:
            if path.startswith(prefix) and len(path) > len(prefix):
                return None if _climbs(path) else candidate
        return None


def _climbs(path: str) -> bool:
    return "\\" in path or any(segment in ("", ".", "..") for segment in path.split("/")[1:])
