"""What a board looks like without Grafana: figures, scales, and that a line can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from matplotlib import image
from matplotlib.figure import Figure

from grafana.boards import BOARDS
from grafana.drawing import DRAW
from grafana.figures import figure, step
from grafana.panels import Board, Panel, Query, Row, on_the_right
from grafana.pictures import draw
from grafana.source import Rows, Source


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.873, "percentunit", "87.3 %"), (8e-17, "percentunit", "0 %"), (0.0375, "s", "37.5 ms"),
        (2.5, "s", "2.5 s"), (0, "s", "0 s"), (1, "bool_yes_no", "yes"), (0, "bytes", "0 B"),
        (1023, "bytes", "1023 B"), (256 * 2**20, "bytes", "256 MiB"), (3 * 2**40, "bytes", "3 TiB"),
        (9999, "short", "9,999"), (1_508_000, "short", "1.51 Mil"), (21.61, "reqps", "21.6 req/s"),
        (float("nan"), "s", "no data"),
    ],
)  # fmt: skip
def test_figures_by_unit(value: float, unit: str, said: str) -> None:
    assert figure(value, unit) == said


@pytest.mark.parametrize(
    ("highest", "unit", "apart"),
    [(6, "short", 1), (7, "short", 2), (30, "short", 5), (0.5, "s", 0.1), (1, "percentunit", 0.2),
     (256 * 2**20, "bytes", 64 * 2**20), (100 * 2**20, "bytes", 32 * 2**20)],
)  # fmt: skip
def test_marks_of_an_axis_are_round(highest: float, unit: str, apart: float) -> None:
    assert step(highest, unit) == pytest.approx(apart)


class Seen(Source):
    """Ten minutes in which each query saw the same line of one series, or several."""

    def __init__(self, *values: Sequence[float]) -> None:
        super().__init__("http://nobody", 10)
        self._values = values

    def range(self, query: Query) -> Rows:
        start = self.start
        return [
            {
                "metric": {"worker": f"w{number}", "le": str(number + 1)},
                "values": [(start + 60 * minute, str(value)) for minute, value in enumerate(values)],
            }
            for number, values in enumerate(self._values)
        ]

    def now(self, query: Query) -> Rows:
        return [{**row, "value": row["values"][-1]} for row in self.range(query)]


def panel(**fields: object) -> Panel:
    return Panel("p", "d", (Query("x", "{{worker}}"),), **{"lowest": 0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "values", "top"),
    [
        ({}, [95.0] * 10, 95.0),
        ({"unit": "bytes"}, [2.0**27] * 10, 2.0**27),
        ({"unit": "percentunit", "highest": 1}, [1.0] * 10, 1.0),
        ({}, [0.0] * 10, 0.0),
    ],
    ids=["flat", "bytes", "full", "nothing"],
)
def test_a_flat_line_does_not_lie_on_the_edge(
    fields: Mapping[str, object], values: list[float], top: float
) -> None:
    axes = Figure().add_subplot()
    DRAW["timeseries"](axes, panel(**fields), Seen(values))
    low, high = axes.get_ylim()
    assert low == 0
    assert high > max(top, 0.5) * 1.05
    assert [line.get_ydata()[0] for line in axes.get_lines()] == [top]  # type: ignore[index]
    assert axes.get_xlim() == (-10, 0)


class Seldom(Seen):
    def range(self, query: Query) -> Rows:
        return [{**row, "values": [*row["values"][:3], *row["values"][5:]]} for row in super().range(query)]


def test_a_line_ends_where_nothing_was_seen_for_longer_than_a_minute() -> None:
    axes = Figure().add_subplot()
    DRAW["timeseries"](axes, panel(), Seldom([4.0] * 7))
    (line,) = axes.get_lines()
    assert [str(y) for y in line.get_ydata()] == ["4.0", "4.0", "4.0", "nan", "4.0", "4.0"]  # type: ignore[union-attr]
    assert axes.get_ylim()[1] > 4


def test_a_label_that_a_series_lacks_is_empty() -> None:
    axes = Figure().add_subplot()
    both = Panel("p", "d", (Query("a", "{{worker}} {{process}}"), Query("b", "{{model}}")), lowest=0)
    DRAW["timeseries"](axes, both, Seen([1.0]))
    assert [line.get_label() for line in axes.get_lines()] == ["w0", "w0, 1"]


def test_stacked_lines_stand_on_each_other() -> None:
    axes = Figure().add_subplot()
    DRAW["timeseries"](axes, panel(stacked=True), Seen([2.0] * 10, [3.0] * 10))
    assert [line.get_ydata()[0] for line in axes.get_lines()] == [2, 5]  # type: ignore[index]
    assert axes.get_ylim()[1] > 5


def test_another_unit_stands_on_the_right() -> None:
    axes = Figure().add_subplot()
    both = Panel(
        "p", "d", (Query("a", "load"), Query("b", "time")), lowest=0, overrides=(on_the_right("time", "s"),)
    )
    DRAW["timeseries"](axes, both, Seen([4.0] * 10))
    left, right = axes.figure.get_axes()
    assert [len(each.get_lines()) for each in (left, right)] == [1, 1]
    assert right.yaxis.get_major_formatter()(0.5, None) == "500 ms"


@pytest.mark.parametrize(("quiet", "said"), [(True, "none"), (False, "NO DATA")])
def test_no_data_is_said(quiet: bool, said: str) -> None:
    axes = Figure().add_subplot()
    DRAW["timeseries"](axes, panel(quiet=quiet), Seen())
    assert [text.get_text() for text in axes.texts] == [said]


def test_a_board_is_one_picture_with_all_its_kinds_of_panels(tmp_path: Path) -> None:
    kinds = {each.kind: each for board in BOARDS for each in board.panels()}
    assert kinds.keys() == DRAW.keys() - {"gauge"}
    board = Board("kinds", "Kinds", "One of each.", (Row("All", tuple(kinds.values())),))
    draw(Seen([1.0] * 10, [4.0] * 10), tmp_path, [board])
    shape = image.imread(tmp_path / "kinds.png").shape
    assert shape[1] == 14 * 90
