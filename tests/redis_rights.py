"""The rights that docs/redis.md tells an operator to give, for a user of a test's server."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.conftest import ROOT
from tests.servers import Server

USER, PASSWORD = "gw", "pw"


def documented() -> list[str]:
    """The rules of the `ACL SETUSER` line, without name and password."""
    page = (ROOT / "docs" / "redis.md").read_text()
    (rules,) = re.findall(r"^ACL SETUSER gw on >PASSWORD (.+)$", page, re.MULTILINE)
    return str(rules).split()


def give(server: Server, rules: Sequence[str]) -> str:
    """The user has these rights from then on, and no others; gives the URL that it connects by."""
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *rules)
    return f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}"


def refused(server: Server) -> list[str]:
    """What the server refused to anybody for want of rights: commands, keys, channels."""
    with server.client() as admin:
        rows = admin.execute_command("ACL", "LOG")
    return [str(row["object"] if isinstance(row, dict) else row) for row in rows]
