"""Requests that go round in circles: a gateway among the workers of a gateway that is among its own.

Each gateway adds its name to `Via` (RFC 9110, section 7.6.3) of what it passes on, and of what it asks of
workers. One that finds its own there would pass it on for ever.
"""

from __future__ import annotations

from gateway.errors import LoopDetected
from gateway.upstream.headers import Headers

_OURS = b"prefix-gateway-"
MOST = 8
"""Gateways that a request may have come through: processes behind one port may have names of their own."""


class Via:
    """What one gateway adds, and looks for. All processes behind one port have one `name`."""

    def __init__(self, name: str) -> None:
        self._name = _OURS + name.encode()
        self.value = b"1.1 " + self._name

    def check(self, headers: Headers) -> None:
        """Raises LoopDetected."""
        names = [
            hop.split()[1]
            for name, value in headers
            if name == b"via"
            for hop in value.split(b",")
            if len(hop.split()) > 1
        ]
        if self._name in names:
            raise LoopDetected(
                "this request has come back to the gateway that sent it on: a worker of one gateway is "
                "another gateway that has the first among its workers"
            )
        if sum(name.startswith(_OURS) for name in names) >= MOST:
            raise LoopDetected(
                f"this request has come through {MOST} gateways, each a worker of the one before"
            )
