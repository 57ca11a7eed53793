"""What asyncio says of TLS connections that failed behind our back, as one line in place of a traceback.

A handshake that fails after whoever wanted the connection has given it up leaves an error that nobody takes:
the loop logs it, as an error of ours, with where it came from in the library. Who uses the connection has
said what is missing already.
"""

from __future__ import annotations

import logging
import ssl
import time

from gateway.types import Clock

QUIET_S = 10.0
"""Between two such lines."""
_FATAL = "Fatal error on SSL protocol"
_UNTAKEN = "exception was never retrieved"


class TlsLines(logging.Filter):
    """For asyncio's logger."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._quiet_until = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        message = record.getMessage()
        untaken = _UNTAKEN in message and isinstance(error, ssl.SSLError)
        if not untaken and _FATAL not in message:
            return True
        now = self._clock()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + QUIET_S
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = "a TLS connection failed", ()
        record.exc_info = record.exc_text = None
        record.reason = str(error or "") or type(error).__name__
        return True
