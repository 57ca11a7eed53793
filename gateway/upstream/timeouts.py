"""How long a worker may take, phase by phase. None of them is infinite unless someone says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. An answer that is not streamed comes in one piece when all of it has been generated, so its
    first byte gets a limit of its own."""

    connect: float = 5.0
    first_byte: float = 120.0
    """From the request's last byte to the first body byte of a streamed answer: queue and prefill."""
    whole_answer: float = 600.0
    """The same for an answer that is not streamed: queue, prefill and all of decode."""
    idle: float = 120.0
    """Between two reads of a body, while we are willing to read."""
    total: float = 3600.0
    """The whole request, all its tries together."""
