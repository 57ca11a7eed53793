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
from gateway.upstream.usage import is_json, read_frame

MAX_EVENT = 8 * 1024 * 1024
"""Bytes of one event. A longer one is taken for a worker out of its mind."""

_BLANK_LINE = re.compile(rb"\n\n|\r\n\r\n|\r\r|\n\r\n|\r\n\n")
_DONE = b"[DONE]"
_LAST_EVENTS = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")
"""How streams of the Messages and Responses APIs say that they are whole."""
_USAGE = b'"usage"'
_NOTHING = (b":null", b": null")
_PIECE = re.compile(
    rb'"(?:content|text|delta|reasoning|reasoning_content|arguments)": ?'
    rb'"((?:[^"\\\r\n]++|\\[^"\r\n])*+)"(?=[,}])'
)
"""Where an event has the text that it brings: a string in it, without a quote in there."""
_SHAPES = 32
"""Shapes of events that a stream is asked for: those of one that changes it all the time are not worth it."""
_WORTH_IT = 8
"""Events after which the next shape does not count: some engines put the second into every event."""


class SseScanner:
    """One stream: a body of gateway.upstream.bodies. `feed` each read and forward what it returns.

    `hide_usage` keeps back the chunk that has a usage and no choices: it was asked for by the gateway, not by
    the client. `redactor` takes fields out of events. With `must_say_done` a body that ends without its last
    event is one of a worker that died: nothing else tells. With `of_json` so is one that ends inside of one.
    """

    def __init__(
        self,
        *,
        hide_usage: bool = False,
        redactor: Redactor | None = None,
        max_event: int = MAX_EVENT,
        must_say_done: bool = False,
        of_json: bool = False,
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
        self._telling = (b"\r", b'"error"', *self._redactor.signs)
        """An event of one line without any of these, and without usage, has nothing in it to read."""
        self._max_event = max_event
        self._must_say_done = must_say_done
        self._of_json = of_json
        self._partial = b""
        self._searched = 0
        self._before = self._behind = b""
        """Of the text in a plain event: what differs from it in that text alone is plain, too."""
        self._text_at = self._text_ends = 0
        """Their lengths."""
        self._shapes = _SHAPES
        self._learned_at = 0

    @property
    def shape(self) -> tuple[bytes, bytes] | None:
        """What stands before and behind the text in an event that has nothing in it to read: another one with
        the same around its text has nothing either. None where none is known, or where a part of an event is
        held, to which the next bytes belong."""
        return (self._before, self._behind) if self._before and not self._partial else None

    @property
    def held_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: bytes, last: bool = False) -> bytes:
        """Raises UpstreamProtocolError when one event grows beyond `max_event`, and for a `last` read without
        the event that must be there, or with one that breaks off."""
        before, behind = self._before, self._behind
        if (
            before
            and data.startswith(before)
            and data.endswith(behind)
            and (at := self._text_at) <= (to := len(data) - self._text_ends)
            and data.find(b'"', at, to) < 0
            and not data.endswith(b"\\", at, to)
            and data.find(b"\n", at, to) < 0
            and data.find(b"\r", at, to) < 0
            and not self._partial
            and not last
        ):
            self.events += 1
            return data
        if (
            data.startswith(b"data: {")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2
            and not self._partial
            and not last
        ):
            # Nearly every read is one plain event, and is told here without a call: `_is_plain`, for one.
            # Searches are by `find` and `count`: `in` costs double on bytes.
            at = data.find(_USAGE)
            if at < 0 or (data.startswith(_NOTHING, at + 7) and data.find(_USAGE, at + 7) < 0):
                for sign in self._telling:
                    if data.find(sign) >= 0:
                        break
                else:
                    if self._shapes and not (before and data.startswith(before)):
                        self._learn(data)
                    self.events += 1
                    return data
        out = self._feed(data)
        return out + self._finish() if last else out

    def _learn(self, event: bytes) -> None:
        """A plain one, as most that come behind it will be. A text in place of its own can't end its string,
        nor keep it from ending: whatever it brings about lies inside of the text, where it tells nothing."""
        if self.events < self._learned_at + _WORTH_IT:
            self._shapes -= 1
        self._learned_at = self.events
        found = _PIECE.search(event)
        if found is not None:
            self._text_at, self._text_ends = found.start(1), len(event) - found.end(1)
            self._before, self._behind = event[: self._text_at], event[found.end(1) :]

    def _finish(self) -> bytes:
        rest = self.end()
        if self._must_say_done and not self.done and not self.error:
            raise UpstreamProtocolError("a stream that ends without its last event")
        return rest

    def _feed(self, data: bytes) -> bytes:
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
        """An event that lacks its blank line alone at the end of the body is forwarded all the same."""
        rest, self._partial = self._partial, b""
        if self._of_json and _breaks_off(rest):
            raise UpstreamProtocolError("a stream that ends inside an event")
        return self._event(rest) if rest else b""

    def _is_plain(self, data: bytes) -> bool:
        """Whole events of one ``data:`` line each with nothing in them to read: counts them and says True."""
        if not data.endswith(b"\n\n") or not data.startswith(b"data: {") or data.find(b"\r") >= 0:
            return False
        pairs = 1
        if data.find(b"\n") != len(data) - 2:
            # Runs of line feeds are all even when there are twice as many feeds as pairs of them. As many
            # lines that start with an object as there are pairs means that each line is one event.
            pairs = data.count(b"\n\n")
            if data.count(b"\n") != 2 * pairs or data.count(b"\ndata: {") != pairs - 1:
                return False
        if data.find(_USAGE) >= 0:
            nothing = sum(data.count(_USAGE + null) for null in _NOTHING)
            if data.count(_USAGE) != nothing:
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
        frame = read_frame(data) if data.find(_USAGE) >= 0 or data.find(b'"error"') >= 0 else None
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


def _breaks_off(rest: bytes) -> bool:
    """What stands behind the last blank line of a stream of JSON is no whole event, comment or field."""
    lines = rest.splitlines()
    values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    if not values:
        return any(line.find(b":") < 0 for line in lines if line)
    data = b"\n".join(values)
    return data != _DONE and not is_json(data)


def _with_data(event: bytes, lines: list[bytes], data: bytes) -> bytes:
    """The same event with other data, which has to fit one line or keep its own line ends."""
    newline = b"\r\n" if b"\r\n" in event else b"\r" if b"\r" in event else b"\n"
    out = [line for line in lines if line and not line.startswith(b"data:")]
    out += [b"data: " + line for line in data.splitlines()]
    return newline.join([*out, b"", b""])
