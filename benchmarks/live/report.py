"""Medians over rounds, as a table for people, as Markdown and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ending import write
from benchmarks.live.measure import LiveRow

Row = dict[str, Any]
_BEGIN, _END = "<!-- live:begin -->", "<!-- live:end -->"
_COLUMNS = (
    ("hit rate", "hit_rate", "{:.3f}", 1.0),
    ("busiest/mean", "balance", "{:.3f}", 1.0),
    ("TTFT p50 ms", "ttft_p50_s", "{:.0f}", 1e3),
    ("p99 ms", "ttft_p99_s", "{:.0f}", 1e3),
    ("goodput/s", "goodput_rps", "{:.2f}", 1.0),
    ("within limit", "within_slo", "{:.3f}", 1.0),
    ("router CPU ms", "router_cpu_ms", "{:.2f}", 1.0),
    ("cores busy", "cores_busy", "{:.2f}", 1.0),
)


def medians(rows: Iterable[Row]) -> list[Row]:
    """One row for each workload and router, in the order in which they came; failures are added up."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["router"]), []).append(row)
    return [_median(group) for group in groups.values()]


def _median(group: Sequence[Row]) -> Row:
    first = group[0]
    figures = {
        k: statistics.median(row[k] for row in group) for k, v in first.items() if isinstance(v, float)
    }
    whole = {
        "rounds": len(group),
        "requests": first["requests"],
        "failed": sum(row["failed"] for row in group),
    }
    return {"workload": first["workload"], "router": first["router"], **whole, **figures}


def markdown(rows: Sequence[Row]) -> str:
    lines: list[str] = []
    workload = None
    for row in rows:
        if row["workload"] != workload:
            workload = row["workload"]
            lines += [
                "",
                f"**{workload}**",
                "",
                f"| router | {' | '.join(c[0] for c in _COLUMNS)} | failed |",
            ]
            lines += ["|---|" + "--:|" * (len(_COLUMNS) + 1)]
        lines.append(f"| {row['router']} | {' | '.join(_cells(row))} | {row['failed']} |")
    return "\n".join(lines[1:]) + "\n"


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table("workload", "router", *(c[0] for c in _COLUMNS), "failed")
    for row in rows:
        table.add_row(row["workload"], row["router"], *_cells(row), str(row["failed"]))
    console.print(table)


def _cells(row: Row) -> list[str]:
    """A figure that there is none of (NaN) is a dash."""
    return [
        "–" if isnan(row[key]) else form.format(row[key] * factor) for _title, key, form, factor in _COLUMNS
    ]


def into_page(page: Path, table: str) -> None:
    """Puts the tables between the page's two marks. Raises ValueError where it has none."""
    head, tail = check_page(page)
    write(page, f"{head}{_BEGIN}\n{table}{_END}{tail}")


def check_page(page: Path) -> tuple[str, str]:
    """What stands before its marks and after them. Raises ValueError where it has none, OSError."""
    head, _begin, rest = page.read_text().partition(_BEGIN)
    _old, end, tail = rest.partition(_END)
    if not end:
        raise ValueError(f"{page} has no {_BEGIN} … {_END}")
    return head, tail


def save(path: Path, rows: Sequence[LiveRow], settings: Row) -> None:
    """Rows are kept round by round; medians beside them."""
    plain = [{k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(r).items()} for r in rows]
    document = {"machine": machine(), **settings, "medians": medians(plain), "rows": plain}
    write(path, json.dumps(document, indent=1) + "\n")


def machine() -> Row:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "architecture": platform.machine(),
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
