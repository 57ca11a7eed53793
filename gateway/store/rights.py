"""What an ACL user may not do: shown by trying each command that is used here, for want of a right to ask.

One that is refused would otherwise fail where it is first wanted: in a script of an API key's limits, or when
a replica becomes a worker's writer, while all others succeed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store.scripts import load_script

RIGHTS = load_script("gateway.store", "rights")
"""KEYS: a key that is nobody's. ARGV: a channel that nobody listens to."""


def lacking(answer: Sequence[bytes], prefix: str) -> list[str]:
    """The rules of an ACL that the user of `RIGHTS` lacks, from its answer; `prefix` is that of all keys."""
    rules: dict[str, None] = {}
    for command, reason in zip(answer[::2], answer[1::2], strict=True):
        if b"access a key" in reason:  # of one that may be read alone
            rule = f"~{prefix}:*"
        elif b"access a channel" in reason:
            rule = f"&{prefix}:*"
        else:
            rule = f"+{command.decode().lower()}"
        rules[rule] = None
    return list(rules)
