"""`/admin/workers` of several processes as one: what each has of its own is put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
_OWN_LOAD = ("requests", "waiting_tokens", "decoding_tokens")
_OWN_PROMISES = ("promises", "promised_tokens", "short_tokens", "extra_tokens")


def merged_rows(processes: Sequence[Sequence[Row]]) -> list[Row]:
    """Rows as the first process has them, with loads and promises of all."""
    others = [{row["id"]: row for row in rows} for rows in processes[1:]]
    return [_merge(row, [rows[row["id"]] for rows in others if row["id"] in rows]) for row in processes[0]]


def _merge(row: Row, others: Sequence[Row]) -> Row:
    rows = [row, *others]
    loads, promises = [r["load"] for r in rows], [r["promise"] for r in rows]
    own = sum(load["requests"] for load in loads)
    seen = max(load["requests"] + load["peer_requests"] for load in loads)
    promised = sum(p["promised_tokens"] for p in promises)
    return {
        **row,
        "load": {
            **row["load"],
            **{name: sum(load[name] for load in loads) for name in _OWN_LOAD},
            "peer_requests": max(0, seen - own),
        },
        "promise": {
            **row["promise"],
            **{name: sum(p[name] for p in promises) for name in _OWN_PROMISES},
            "drift": sum(p["drift"] * p["promised_tokens"] for p in promises) / promised if promised else 0.0,
            "degraded": any(p["degraded"] for p in promises),
        },
        # the one who follows its events knows more of them than those who mirror
        "events": max(
            (r["events"] for r in rows if r["events"] is not None),
            key=lambda events: (events["next_seq"], events["epochs"]),
            default=None,
        ),
    }
