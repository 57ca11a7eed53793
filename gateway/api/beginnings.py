"""The beginning of a prompt, asked of a worker for one token that nobody reads: it is for what it leaves in
the engine's prefix cache."""

from __future__ import annotations

import msgspec

from gateway.errors import UpstreamError
from gateway.routing.slicing import Sliced
from gateway.types import Usage
from gateway.upstream.client import UpstreamClient
from gateway.upstream.lane import Lane
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.usage import read_usage
from gateway.upstream.wire import Flow, ResponseHead, UpstreamRequest

_MOST_ANSWER = 256 * 1024
"""Bytes of an answer of one token that are read."""


class SliceRefused(Exception):
    """The worker takes no slices; says why. `computed` where it did its part all the same."""

    def __init__(self, why: str, *, computed: bool = False) -> None:
        super().__init__(why)
        self.computed = computed


class BeginningAnswer:
    """A sink (gateway.upstream.wire.Sink) that keeps an answer of one token."""

    def __init__(self) -> None:
        self.status = 0
        self._body = bytearray()

    def on_head(self, head: ResponseHead, flow: Flow) -> None:
        self.status = head.status

    def on_body(self, data: bytes, last: bool) -> Lane | None:
        if len(self._body) < _MOST_ANSWER:
            self._body += data
        return None

    @property
    def usage(self) -> Usage | None:
        return read_usage(bytes(self._body)) if self.status == 200 else None


async def ask_for_beginning(
    client: UpstreamClient,
    url: str,
    beginnings: Beginnings,
    timeouts: Timeouts,
    deadline: float,
    tokens: int,
) -> Usage:
    """Raises UpstreamError, also where the worker has too much to do, and SliceRefused."""
    answer = BeginningAnswer()
    await client.exchange(url, beginnings.request(tokens), answer, timeouts, deadline)
    if answer.status == 429 or answer.status >= 500:
        raise UpstreamError(f"it answered {answer.status}")
    usage = answer.usage
    if usage is None:
        good = answer.status == 200
        raise SliceRefused("an answer without usage" if good else f"answered {answer.status}", computed=good)
    return usage


class Beginnings:
    """Completions of the first so many tokens of `request`'s prompt, with the headers of that one."""

    def __init__(
        self, request: UpstreamRequest, sliced: Sliced, model: str, salt: str, priority: object = None
    ) -> None:
        """`salt` is what the engine gets of the request, which need not be what its client said."""
        fields: dict[str, object] = {"model": model, "max_tokens": 1, "temperature": 0}
        if salt:
            fields["cache_salt"] = salt
        if priority is not None:
            fields["priority"] = priority
        self._request = request
        self._ids = sliced.ids
        self._head = msgspec.json.encode(fields)[:-1] + b',"prompt":['
        self._text = b""
        """Of the tokens that were asked for before: each slice costs the loop its own alone."""
        self._written = 0

    def request(self, tokens: int) -> UpstreamRequest:
        """`tokens` are more each time."""
        more = msgspec.json.encode(self._ids[self._written : tokens].tolist())[1:-1]
        self._text, self._written = (self._text + b"," + more if self._text else more), tokens
        request = self._request
        headers = [
            (name, b"%s-%d" % (value, tokens) if name == b"x-request-id" else value)
            for name, value in request.headers
        ]
        return UpstreamRequest(
            b"POST",
            b"/v1/completions",
            headers,
            self._head + self._text + b"]}",
            # the time that it may take to begin is that of the request itself
            request.streamed,
            request.written,
        )
