"""Server-sent events in passing: what a stream says is noticed without parsing its chunks.

Only whole events go on to the client, so a stream that dies is never cut inside one, and an event can be kept
back. In the usual read (whole events, one ``data:`` line each) that costs a few searches over its bytes; JSON
is parsed for the few events that carry something to read.
"""

from __future__ import annotations

import re

from gateway.errors import UpstreamProtocolError
from gateway.types import Usage
from gateway.upstream.redact import Redactor
from gateway.upstream.usage import read_frame

MAX_EVENT = 8 * 1024 * 1024
"""Bytes of one event. A longer one is taken for a worker out of its mind."""

_BLANK_LINE = re.compile(rb"\n\n|\r\n\r\n|\r\r|\n\r\n|\r\n\n")
_DONE = b"[DONE]"
_LAST_EVENTS = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")
"""How streams of the Messages and Responses APIs say that they are whole."""


class SseScanner:
    """One stream. `feed` each read and forward what it returns; `end` at the end of the body.

    `hide_usage` keeps back the chunk that has a usage and no choices: it was asked for by the gateway, not by
    the client. `redactor` takes fields out of events.
    """

    def __init__(
        self,
        *,
        hide_usage: bool = False,
        redactor: Redactor | None = None,
        max_event: int = MAX_EVENT,
    ) -> None:
        self.events = 0
        """Events with data, ``[DONE]`` and hidden ones not counted."""
        self.usage: Usage | None = None
        self.done = False
        """``[DONE]`` was seen, or the event with which the API's streams end."""
        self.error = False
        """The worker reported an error inside the stream."""
        self._hide_usage = hide_usage
        self._redactor = redactor or Redactor(())
        self._max_event = max_event
        self._partial = b""
        self._searched = 0

    @property
    def held_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: bytes) -> bytes:
        """Raises UpstreamProtocolError when one event grows beyond `max_event`."""
        if not self._partial and self._is_plain(data):
            return data
        data = self._partial + data
        out: list[bytes] = []
        start = 0
        # a blank line may lie across two reads, but not further back than its own length
        position = max(0, self._searched - 3)
        while (match := _BLANK_LINE.search(data, position)) is not None:
            position = match.end()
            out.append(self._event(data[start:position]))
            start = position
        self._partial = data[start:]
        self._searched = len(self._partial)
        if len(self._partial) > self._max_event:
            raise UpstreamProtocolError(f"an event of more than {self._max_event} bytes")
        return b"".join(out)

    def end(self) -> bytes:
        """An event that lacks its blank line at the end of the body is forwarded all the same."""
        rest, self._partial = self._partial, b""
        return self._event(rest) if rest else b""

    def _is_plain(self, data: bytes) -> bool:
        """Whole events of one ``data:`` line each, with nothing in them to read: counts them and says True.

        Searches are by `find` and `count`: `in` costs double on bytes.
        """
        if not data.endswith(b"\n\n") or not data.startswith(b"data: {") or data.find(b"\r") >= 0:
            return False
        pairs = 1
        if data.find(b"\n") != len(data) - 2:
            # Runs of line feeds are all even when there are twice as many feeds as pairs of them. As many
            # lines that start with an object as there are pairs means that each line is one event.
            pairs = data.count(b"\n\n")
            if data.count(b"\n") != 2 * pairs or data.count(b"\ndata: {") != pairs - 1:
                return False
        if data.find(b'"usage"') >= 0:
            nothing = data.count(b'"usage":null') + data.count(b'"usage": null')
            if data.count(b'"usage"') != nothing:
                return False
        if data.find(b'"error"') >= 0 or self._redactor.concerns(data):
            return False
        self.events += pairs
        return True

    def _event(self, event: bytes) -> bytes:
        """What of one event, its blank line included, goes on."""
        lines = event.splitlines()
        values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        for line in lines:
            if line.startswith(b"event:"):
                name = line[6:].strip()
                self.error = self.error or name == b"error"
                self.done = self.done or name in _LAST_EVENTS
        if not values:
            return event
        data = b"\n".join(values)
        if data == _DONE:
            self.done = True
            return event
        frame = read_frame(data) if data.find(b'"usage"') >= 0 or data.find(b'"error"') >= 0 else None
        if frame is not None:
            self.error = self.error or frame.is_error
            if (usage := frame.any_usage) is not None:
                self.usage = usage.read(self.usage)
                if self._hide_usage and frame.usage_only:
                    return b""
        self.events += 1
        if self._redactor.concerns(data):
            return _with_data(event, lines, self._redactor.redact(data))
        return event


def _with_data(event: bytes, lines: list[bytes], data: bytes) -> bytes:
    """The same event with other data, which has to fit one line or keep its own line ends."""
    newline = b"\r\n" if b"\r\n" in event else b"\r" if b"\r" in event else b"\n"
    out = [line for line in lines if line and not line.startswith(b"data:")]
    out += [b"data: " + line for line in data.splitlines()]
    return newline.join([*out, b"", b""])
