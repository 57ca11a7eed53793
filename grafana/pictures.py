"""Each board's data as one picture: `python -m grafana.pictures PROMETHEUS_URL FOLDER [MINUTES]`.

Not what Grafana draws, but the same expressions over the same data: for looking at a board without Grafana.
"""

from __future__ import annotations

import json
import math
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import itertools

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from grafana.boards import BOARDS
from grafana.expand import expand
from grafana.panels import Board, Panel, Query

Rows = list[dict[str, Any]]
POINTS = 120
ROWS = 12
"""Of a table; Grafana's scrolls."""


class Source:
    def __init__(self, url: str, minutes: float) -> None:
        self._url = url.rstrip("/")
        self.end = time.time()
        self.start = self.end - 60 * minutes
        self._step = max(1.0, 60 * minutes / POINTS)

    def now(self, query: Query) -> Rows:
        return self._get("query", query=self._expr(query), time=self.end)

    def range(self, query: Query) -> Rows:
        return self._get(
            "query_range", query=self._expr(query), start=self.start, end=self.end, step=self._step
        )

    def _expr(self, query: Query) -> str:
        seconds = int(self.end - self.start)
        return expand(
            query.expr, rate_interval="20s", whole=f"{seconds}s", interval=f"{math.ceil(self._step)}s"
        )

    def _get(self, path: str, **params: Any) -> Rows:
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the caller's own Prometheus
            rows: Rows = json.load(answer)["data"]["result"]
        return rows


def _legend(query: Query, labels: dict[str, str]) -> str:
    text = query.legend
    for name, value in labels.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text.removeprefix("http://") or ", ".join(labels.values())


def _number(value: float, unit: str) -> str:
    if math.isnan(value):
        return "no data"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        return f"{value:.3g} s"
    if unit == "bool_yes_no":
        return "yes" if value else "no"
    if unit == "bytes" or (unit == "short" and abs(value) >= 10_000):
        base, names = (
            (1024, ("B", "KiB", "MiB", "GiB")) if unit == "bytes" else (1000, ("", "K", "Mil", "Bil"))
        )
        power = min(3, int(math.log(abs(value), base))) if abs(value) >= 1 else 0
        return f"{value / base**power:.3g} {names[power]}".rstrip()
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


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
    handles = []
    for query in panel.queries:
        on = other if query.legend in right else axes
        for row in source.range(query):
            xs, ys = [float(t) - source.end for t, _ in row["values"]], [float(v) for _, v in row["values"]]
            colour = f"C{len(handles) % 10}"
            (line,) = on.plot(xs, ys, colour, lw=1.2, label=_legend(query, row["metric"])[:38])
            handles.append(line)
    if panel.lowest is not None:
        # a line along the edge would not be seen
        highest = None if panel.highest is None else panel.highest * 1.03
        axes.set_ylim(bottom=panel.lowest, top=highest)
        other.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: _number(value, panel.unit))
    for unit in right.values():
        other.yaxis.set_major_formatter(lambda value, _, unit=unit: _number(value, unit))
        other.tick_params(labelsize=6, direction="in", pad=-26)
    if handles:
        axes.legend(handles=handles, fontsize=5.5, loc="best", framealpha=0.6)
    else:
        axes.text(0.5, 0.5, "none" if panel.quiet else "NO DATA", ha="center", transform=axes.transAxes)


def _heatmap(axes: Axes, panel: Panel, source: Source) -> None:
    rows = sorted(source.range(panel.queries[0]), key=lambda row: float(row["metric"]["le"]))
    grid = [[float(v) for _, v in row["values"]] for row in rows]
    width = max((len(line) for line in grid), default=0)
    grid = [[0.0] * (width - len(line)) + line for line in grid]
    each = [grid[0]] + [
        [b - a for a, b in zip(low, high, strict=True)] for low, high in itertools.pairwise(grid)
    ]
    axes.imshow(each, aspect="auto", origin="lower", cmap="Oranges", interpolation="nearest")
    axes.set_yticks(range(len(rows)), [row["metric"]["le"] for row in rows], fontsize=5)
    axes.set_xticks([])


def _stat(axes: Axes, panel: Panel, source: Source) -> None:
    rows = source.now(panel.queries[0])
    text = _number(float(rows[0]["value"][1]), panel.unit) if rows else "no data"
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=15, transform=axes.transAxes)
    axes.axis("off")


def _bars(axes: Axes, panel: Panel, source: Source) -> None:
    found = [(_legend(q, r["metric"]), float(r["value"][1])) for q in panel.queries for r in source.now(q)]
    if found:
        names, values = zip(*found, strict=True)
        axes.barh(range(len(names)), values, color="C0", alpha=0.5)
        axes.set_yticks([])
        for line, (name, value) in enumerate(found):
            axes.text(0, line, f" {name[:40]}: {_number(value, panel.unit)}", va="center", fontsize=6)
    else:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)
        axes.axis("off")


def _table(axes: Axes, panel: Panel, source: Source) -> None:
    units = {o["matcher"]["options"]: o["properties"][0]["value"] for o in panel.overrides}
    cells: dict[str, dict[str, str]] = {}
    for query in panel.queries:
        for row in source.now(query):
            value = _number(float(row["value"][1]), units[query.legend])
            cells.setdefault(row["metric"].get("worker", ""), {})[query.legend] = value
    columns = [query.legend for query in panel.queries]
    rows = [[worker, *(values.get(c, "–") for c in columns)] for worker, values in sorted(cells.items())]
    if len(rows) > ROWS:
        rows = [*rows[:ROWS], [f"… {len(rows) - ROWS} more", *("" for _ in columns)]]
    table = axes.table(cellText=rows, colLabels=["worker", *columns], loc="center", cellLoc="left")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    axes.axis("off")


_DRAW: dict[str, Callable[[Axes, Panel, Source], None]] = {
    "timeseries": _lines,
    "heatmap": _heatmap,
    "stat": _stat,
    "gauge": _stat,
    "bargauge": _bars,
    "table": _table,
}


def picture(board: Board, source: Source, file: Path) -> None:
    panels = board.panels()
    columns = 24
    places: list[tuple[int, int, Panel]] = []
    x = y = tallest = 0
    for panel in panels:
        if x + panel.width > columns:
            x, y, tallest = 0, y + tallest, 0
        places.append((x, y, panel))
        x, tallest = x + panel.width, max(tallest, panel.height)
    height = y + tallest
    figure = plt.figure(figsize=(14, height * 0.34))
    figure.suptitle(f"{board.title} – {board.description}", fontsize=10, y=0.995)
    grid = figure.add_gridspec(
        height, columns, hspace=0, wspace=3.5, left=0.04, right=0.985, top=0.96, bottom=0.03
    )
    for left, top, panel in places:
        axes = figure.add_subplot(grid[top + 1 : top + panel.height - 1, left : left + panel.width])
        # room for what stands on the left
        box = axes.get_position()
        axes.set_position((box.x0 + 0.012, box.y0, box.width - 0.012, box.height))
        axes.set_title(panel.title, fontsize=8)
        axes.tick_params(labelsize=6)
        _DRAW[panel.kind](axes, panel, source)
    figure.savefig(file, dpi=90)
    plt.close(figure)


def main() -> int:
    if len(sys.argv) not in (3, 4):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    source = Source(sys.argv[1], float(sys.argv[3]) if len(sys.argv) == 4 else 60)
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        picture(board, source, folder / f"{board.uid}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
