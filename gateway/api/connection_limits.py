"""What one connection of a client may take, in time and bytes, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds."""

    head_timeout: float = 10.0
    """From a connection's start, or a request's first byte, to the end of its head."""
    send_timeout: float = 120.0
    """How long a client may take nothing of an answer that waits for it."""
    max_head: int = 64 * 1024
    """Bytes of a request's line and headers; of its trailers; and of what frames its chunks, from one byte
    of the body to the next."""
    max_headers: int = 100
    """Also trailers."""
    max_connections: int = 8192
