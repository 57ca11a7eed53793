"""How many files, and so connections, the process may have open: systems start processes with few."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

ENOUGH = 1 << 20
OTHERS = 256
"""Files, event sockets, Redis, listeners, the admin port: whatever is no client's."""


def allow_open_files(max_connections: int) -> None:
    """Raises the soft limit as far as the hard one allows. A client's connection needs a second one, to its
    worker; says so in the log where that many can't be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # no limit at all is a figure that some systems refuse
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= most:
        most = soft
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    needed = 2 * max_connections + OTHERS
    if most != resource.RLIM_INFINITY and most < needed:
        log.warning(
            "fewer open files are allowed than max_connections may need: raise the hard limit (ulimit -Hn)",
            extra={"allowed": most, "needed": needed, "connections": within_open_files(max_connections)},
        )


def within_open_files(max_connections: int) -> int:
    """As many clients as the process has files for, two each, where it keeps `OTHERS` (or half of all that it
    may have, if that is less): a port that is full says so, one without files could not even do that."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_connections
    return max(1, min(max_connections, (soft - min(OTHERS, soft // 2)) // 2))
