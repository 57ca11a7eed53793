"""Each board's data as one picture: `python -m grafana.pictures PROMETHEUS_URL FOLDER [MINUTES]`.

Not what Grafana draws, but the same expressions over the same data: for looking at a board without Grafana.
`make pictures` draws those of the docs, with a fleet of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from grafana.boards import BOARDS
from grafana.drawing import DRAW
from grafana.panels import COLUMNS, Board, Panel, Row, places
from grafana.source import Source

_LINE_INCHES = 0.34
"""Of Grafana's grid."""


def picture(board: Board, source: Source, file: Path) -> None:
    placed = places(board.rows)
    height = max(y + item.height for _, y, item in placed if isinstance(item, Panel))
    inches = (height + 2) * _LINE_INCHES
    figure = plt.figure(figsize=(14, inches))
    figure.suptitle(f"{board.title} – {board.description}", fontsize=10, y=1 - 0.12 / inches)
    grid = figure.add_gridspec(
        height, COLUMNS, hspace=0, wspace=3.5, left=0.04, right=0.985,
        top=1 - 1.4 * _LINE_INCHES / inches, bottom=0.6 * _LINE_INCHES / inches,
    )  # fmt: skip
    for left, top, item in placed:
        if isinstance(item, Row):
            box = grid[top, :].get_position(figure)
            figure.text(0.01, box.y0, item.title, fontsize=8.5, weight="bold", va="bottom")
            continue
        axes = figure.add_subplot(grid[top + 1 : top + item.height - 1, left : left + item.width])
        # room for what stands on the left
        place = axes.get_position()
        axes.set_position((place.x0 + 0.012, place.y0, place.width - 0.012, place.height))
        axes.set_title(item.title, fontsize=8)
        axes.tick_params(labelsize=6)
        DRAW[item.kind](axes, item, source)
    figure.savefig(file, dpi=90)
    plt.close(figure)


def draw(source: Source, folder: Path, boards: Sequence[Board] = BOARDS) -> None:
    """A picture a board, called by its uid."""
    folder.mkdir(parents=True, exist_ok=True)
    for board in boards:
        picture(board, source, folder / f"{board.uid}.png")


def main() -> int:
    if len(sys.argv) not in (3, 4):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    draw(Source(sys.argv[1], float(sys.argv[3]) if len(sys.argv) == 4 else 60), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
