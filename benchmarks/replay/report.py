"""Rows as tables and as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from benchmarks.replay.cases import FLOOR, Row
from benchmarks.replay.looks import looks

_COLUMNS = (
    ("hit", "hit_rate", "{:.3f}"),
    ("of pooled", "share", "{:.2f}"),
    ("balance", "balance", "{:.2f}"),
    ("TTFT p50 s", "ttft_p50_s", "{:.3f}"),
    ("p90", "ttft_p90_s", "{:.2f}"),
    ("p99", "ttft_p99_s", "{:.2f}"),
    ("× floor p50", "p50_x", "{:.2f}"),
    ("× floor p99", "p99_x", "{:.2f}"),
    ("TPOT p99 ms", "tpot_ms", "{:.0f}"),
    ("goodput/s", "goodput_rps", "{:.2f}"),
)


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table; all but the first column are figures."""
    rows = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join(rows + ["| " + " | ".join(row) + " |" for row in body])


def number(row: Row, name: str) -> float:
    """A row's figure; NaN where it has none."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else float("nan")


def derived(row: Row) -> dict[str, float]:
    """What tables show beside the figures themselves: shares of ceiling and floor."""
    return {
        "share": _ratio(number(row, "hit_rate"), number(row, "ceiling_hit_rate")),
        "p50_x": _ratio(number(row, "ttft_p50_s"), number(row, "floor_ttft_p50_s")),
        "p99_x": _ratio(number(row, "ttft_p99_s"), number(row, "floor_ttft_p99_s")),
        "tpot_ms": 1e3 * number(row, "tpot_p99_s"),
    }


def label(row: Row) -> str:
    """Policy, and under what it ran."""
    parts = [str(row["policy"])]
    if row["replicas"] != 1 and row["policy"] != FLOOR:  # that one has no gateway
        parts.append(f"× {row['replicas']}")
    if not row["shared"] and row["policy"] != FLOOR:
        parts.append("(nothing shared)")
    if row.get("max_ttft_s"):
        parts.append(f"(≤ {number(row, 'max_ttft_s'):g} s)")
    if row.get("slice_after_s") and row["policy"] != FLOOR:
        parts.append(f"(slices after {number(row, 'slice_after_s'):g} s)")
    return " ".join(parts)


def show(rows: Sequence[Row], console: Console) -> None:
    """One table for each point."""
    for point in points(rows):
        first = point[0]
        title = (
            f"{first['trace']}: {first['workers']} × {first['profile']}, {first['blocks_per_worker']} blocks "
            f"of {first['block_size']} ({number(first, 'cache_share'):.0%} of the working set), "
            f"{number(first, 'rate'):g} requests/s, pooled LRU {number(first, 'ceiling_hit_rate'):.3f}, "
            f"infinite {number(first, 'infinite_hit_rate'):.3f}"
        )
        table = Table(title=title, title_justify="left")
        table.add_column("policy")
        for heading, _name, _form in _COLUMNS:
            table.add_column(heading, justify="right")
        for row in point:
            figures = {name: number(row, name) for _heading, name, _form in _COLUMNS} | derived(row)
            table.add_row(label(row), *(form.format(figures[name]) for _heading, name, form in _COLUMNS))
        console.print(table)


def points(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in nothing but policy and replicas."""
    names = ("trace", "workers", "blocks_per_worker", "rate", "profile")
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def picture_kinds() -> list[str]:
    """Endings of names of files that can be drawn. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    return sorted(Figure().canvas.get_supported_filetypes())


def draw(rows: Sequence[Row], path: Path) -> None:
    """TTFT p50 and p99 over the rate, one line a policy, seeds averaged; one row of panels for each fleet.
    Needs matplotlib."""
    from matplotlib.figure import Figure

    fleets = list(dict.fromkeys(map(_fleet, rows)))
    figure = Figure(figsize=(12, 4 * len(fleets)), layout="constrained")
    panels = figure.subplots(len(fleets), 2, squeeze=False)
    for fleet, (left, right) in zip(fleets, panels, strict=True):
        options = str(fleet[3]).partition(",")[2]
        own = [row for row in rows if _fleet(row) == fleet]
        for policy, look in looks(dict.fromkeys(map(label, own))).items():
            line = [row for row in own if label(row) == policy]
            rates = sorted({number(row, "rate") for row in line})
            strong = policy == FLOOR or any(row["default"] for row in line)
            for panel, name in ((left, "ttft_p50_s"), (right, "ttft_p99_s")):
                panel.plot(
                    rates,
                    [
                        fmean(number(row, name) for row in line if number(row, "rate") == rate)
                        for rate in rates
                    ],
                    label=policy,
                    color=look.colour,
                    marker=look.marker,
                    markersize=8,
                    markeredgecolor="white",
                    markeredgewidth=0.5,
                    linewidth=2.5 if strong else 1,
                    linestyle="--" if policy == FLOOR else "-",
                )
        for panel, name in ((left, "p50"), (right, "p99")):
            panel.set(
                xlabel="requests/s",
                ylabel=f"TTFT {name}, s",
                yscale="log",
                title=f"{fleet[0]}, {fleet[1]} workers × {fleet[2]} blocks"
                + (f"\n{options}" if options else ""),
            )
            panel.grid(alpha=0.3)
        right.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def scatter(rows: Sequence[Row], path: Path) -> None:
    """Hit rate against balance and against TTFT p99, a dot a policy, seeds averaged. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6), layout="constrained")
    panels = figure.subplots(1, 2)
    for policy in dict.fromkeys(map(label, rows)):
        own = [row for row in rows if label(row) == policy]
        hit = fmean(number(row, "hit_rate") for row in own)
        strong = policy == FLOOR or any(row["default"] for row in own)
        for panel, name in zip(panels, ("balance", "ttft_p99_s"), strict=True):
            height = fmean(number(row, name) for row in own)
            panel.plot(hit, height, "o", color="crimson" if strong else "steelblue")
            panel.annotate(_short(policy), (hit, height), fontsize=6)
    for panel, axis in zip(panels, ("busiest/mean of prefilled tokens", "TTFT p99, s"), strict=True):
        panel.set(xlabel="token hit rate", ylabel=axis, yscale="log")
        panel.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def _fleet(row: Row) -> tuple[object, ...]:
    return row["trace"], row["workers"], row["blocks_per_worker"], row["profile"]


def _short(policy: str) -> str:
    name = policy.removeprefix("estimated_ttft:")
    return name.replace("work_weight", "w").replace("balance_weight", "b")


def _ratio(value: float, of: float) -> float:
    return value / of if of else float("nan")
