"""One panel's data on one pair of axes, by the kind of panel."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from grafana.figures import figure, step
from grafana.panels import Panel, Query
from grafana.source import Source

ROWS = 12
"""Of a table; Grafana's scrolls."""
_HEAD_ROOM = 1.08
"""A line along the edge would not be seen."""
_BRIDGED_MINUTES = 1
"""`spanNulls` of the boards."""
_MANY = 6
"""Names above which a legend takes two columns."""


def _legend(query: Query, labels: Mapping[str, str]) -> str:
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), query.legend)
    return text.strip().removeprefix("http://") or ", ".join(labels.values()) or "–"


def _nothing(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=8, color="gray", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _right(panel: Panel) -> dict[str, str]:
    """Units of what stands on the right axis, by legend."""
    found = {}
    for override in panel.overrides:
        properties = {each["id"]: each["value"] for each in override["properties"]}
        if properties.get("custom.axisPlacement") == "right":
            found[override["matcher"]["options"]] = properties["unit"]
    return found


def _lines(axes: Axes, panel: Panel, source: Source) -> None:
    right = _right(panel)
    other = axes.twinx() if right else axes
    handles: list[Line2D] = []
    tops = {axes: 0.0, other: 0.0}
    below: dict[float, float] = {}
    for query in panel.queries:
        on = other if query.legend in right else axes
        for labels, xs, values in source.lines(query):
            colour, ys = f"C{len(handles) % 10}", values
            if panel.stacked:
                under = [below.get(x, 0.0) for x in xs]
                ys = [y + low for y, low in zip(values, under, strict=True)]
                on.fill_between(xs, under, ys, color=colour, alpha=0.2, lw=0)
                below.update(zip(xs, ys, strict=True))
            (line,) = on.plot(*_with_gaps(xs, ys), colour, lw=1.2, label=_legend(query, labels)[:38])
            handles.append(line)
            tops[on] = max(tops[on], *(y for y in ys if math.isfinite(y)), 0.0)
    if not handles:
        _nothing(axes, "none" if panel.quiet else "NO DATA")
        return
    _time(axes, source)
    if panel.lowest is not None:
        _scale(axes, panel.lowest, panel.highest or tops[axes], panel.unit)
    for unit in right.values():
        _scale(other, 0.0, tops[other], unit)
        # inside: the next panel's marks stand outside
        other.tick_params(labelsize=6, length=0, pad=-3)
        for label in other.get_yticklabels():
            label.set_horizontalalignment("right")
    other.legend(
        handles=handles, fontsize=5.5, framealpha=0.6, ncols=2 if len(handles) > _MANY else 1,
        loc="lower center" if right else "best",
    )  # fmt: skip


def _with_gaps(xs: list[float], ys: list[float]) -> tuple[list[float], list[float]]:
    """The line ends where a series has no values for longer than Grafana would bridge."""
    gaps = [i for i, (a, b) in enumerate(itertools.pairwise(xs), 1) if b - a > _BRIDGED_MINUTES]
    for i in reversed(gaps):
        xs, ys = [*xs[:i], xs[i], *xs[i:]], [*ys[:i], math.nan, *ys[i:]]
    return xs, ys


def _scale(axes: Axes, lowest: float, highest: float, unit: str) -> None:
    highest = highest or 1.0
    axes.set_ylim(lowest, lowest + (highest - lowest) * _HEAD_ROOM)
    axes.yaxis.set_major_locator(MultipleLocator(step(highest - lowest, unit)))
    axes.yaxis.set_major_formatter(lambda value, _: figure(value, unit))


def _time(axes: Axes, source: Source) -> None:
    axes.set_xlim(-source.minutes, 0)
    axes.xaxis.set_major_locator(MultipleLocator(step(source.minutes, "short")))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g} min" if value < -1e-6 else "now")


def _heatmap(axes: Axes, panel: Panel, source: Source) -> None:
    rows = sorted(source.range(panel.queries[0]), key=lambda row: float(row["metric"]["le"]))
    grid = [[float(v) for _, v in row["values"]] for row in rows]
    if not grid:
        _nothing(axes, "NO DATA")
        return
    width = max(len(line) for line in grid)
    grid = [[0.0] * (width - len(line)) + line for line in grid]
    each = [grid[0]] + [
        [b - a for a, b in zip(low, high, strict=True)] for low, high in itertools.pairwise(grid)
    ]
    oldest = min(float(at) for row in rows for at, _ in row["values"])
    axes.imshow(
        each, aspect="auto", origin="lower", cmap="Oranges", interpolation="nearest",
        extent=((oldest - source.end) / 60, 0, -0.5, len(rows) - 0.5),
    )  # fmt: skip
    bounds = [float(row["metric"]["le"]) for row in rows]
    axes.set_yticks(range(len(rows)), [figure(b, "s") if math.isfinite(b) else "more" for b in bounds])
    axes.tick_params(axis="y", labelsize=5)
    _time(axes, source)


def _stat(axes: Axes, panel: Panel, source: Source) -> None:
    rows = source.now(panel.queries[0])
    text = figure(float(rows[0]["value"][1]), panel.unit) if rows else "no data"
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=15, transform=axes.transAxes)
    axes.axis("off")


def _bars(axes: Axes, panel: Panel, source: Source) -> None:
    found = [(_legend(q, r["metric"]), float(r["value"][1])) for q in panel.queries for r in source.now(q)]
    if not found:
        _nothing(axes, "none")
        return
    names, values = zip(*found, strict=True)
    axes.barh(range(len(names)), values, color="C0", alpha=0.5)
    axes.set_xlim(0, max(values) or 1)
    axes.set_xticks([])
    axes.set_yticks([])
    for line, (name, value) in enumerate(found):
        axes.text(0, line, f" {name[:40]}: {figure(value, panel.unit)}", va="center", fontsize=6)


def _table(axes: Axes, panel: Panel, source: Source) -> None:
    units = {o["matcher"]["options"]: o["properties"][0]["value"] for o in panel.overrides}
    cells: dict[str, dict[str, str]] = {}
    for query in panel.queries:
        for row in source.now(query):
            value = figure(float(row["value"][1]), units[query.legend])
            cells.setdefault(row["metric"].get("worker", ""), {})[query.legend] = value
    columns = [query.legend for query in panel.queries]
    rows = [[worker, *(values.get(c, "–") for c in columns)] for worker, values in sorted(cells.items())]
    if len(rows) > ROWS:
        rows = [*rows[:ROWS], [f"… {len(rows) - ROWS} more", *("" for _ in columns)]]
    table = axes.table(cellText=rows, colLabels=["worker", *columns], loc="upper center", cellLoc="left")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    axes.axis("off")


DRAW: Mapping[str, Callable[[Axes, Panel, Source], None]] = MappingProxyType(
    {
        "timeseries": _lines,
        "heatmap": _heatmap,
        "stat": _stat,
        "gauge": _stat,
        "bargauge": _bars,
        "table": _table,
    }
)
"""Each draws a panel's data on axes that are empty, but for the title."""
