"""Ports for the servers of tests: asked for here, and bound later, by a process that has to start first.

They lie below those that the kernel gives to outgoing connections, so that none of the thousands that tests
open takes one in between; each process of pytest-xdist has a range of its own, each run begins somewhere else
in it, and none is given twice before all were. The one above each is left alone: there an engine replays.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from itertools import islice

LOW, HIGH = 10_000, 32_000
RANGES = 8


def _own_range() -> range:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % RANGES
    size = (HIGH - LOW) // RANGES
    return range(LOW + number * size, LOW + (number + 1) * size, 2)


def _all() -> Iterator[int]:
    own = _own_range()
    begin = random.SystemRandom().randrange(len(own))
    while True:
        yield from own[begin:]
        yield from own[:begin]


_PORTS = _all()


def free_port(*, room: int = 2) -> int:
    """A port of 127.0.0.1 that was free a moment ago; the `room - 1` above it are given to nobody else."""
    while True:
        taken = list(islice(_PORTS, (room + 1) // 2))
        together = taken[-1] - taken[0] == 2 * (len(taken) - 1)
        if together and is_free(taken[0]):
            return taken[0]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
