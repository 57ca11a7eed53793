"""Where an answer's head and its body end: no more of HTTP than that."""

from __future__ import annotations

LAST_CHUNK = b"0\r\n\r\n"


def body_length(head: bytes) -> int | None:
    """Of a head in small letters without its empty line; None where it names none."""
    at = head.find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else None


class Answer:
    """One answer as it arrives. A body without a length ends with the last chunk: of events that themselves
    end with a plain ``\\n\\n``, so that nothing else looks like it."""

    __slots__ = ("_head", "_left", "_tail", "begun", "ok")

    def __init__(self) -> None:
        self._head, self._left, self._tail = b"", -1, b""
        self.ok = False
        """Its status is 200."""
        self.begun = False
        """Something of its body is there."""

    def feed(self, data: bytes) -> bool:
        """Whether it is whole with these bytes."""
        if self._left == -1:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            self.ok = head.startswith(b"http/1.1 200")
            length = body_length(head)
            self._left = -2 if length is None else length
        if data:
            self.begun = True
        if self._left >= 0:
            self._left = max(0, self._left - len(data))
            return self._left == 0
        self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
        return self._tail == LAST_CHUNK
