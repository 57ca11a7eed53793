"""With a hundred workers, every panel still has data, and no more lines than a person can tell apart."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gateway.metrics import TTFT_SECONDS
from grafana.boards import BOARDS
from grafana.expand import expand
from grafana.panels import Board, Panel
from tests.e2e.conftest import wait_until
from tests.e2e.hundred import WORKERS, hundred
from tests.e2e.prometheus import Prometheus

pytestmark = pytest.mark.timeout(700)

READABLE = 12
"""Lines of one panel."""

PANELS = [(board, panel) for board in BOARDS for panel in board.panels()]


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with hundred(tmp_path_factory.mktemp("hundred")) as made:
        yield made


def _id(value: object) -> str:
    return value.title if isinstance(value, Board | Panel) else ""


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=_id)
def test_the_panel_has_data_and_few_lines(watcher: Prometheus, board: Board, panel: Panel) -> None:
    def lines() -> list[int]:
        """Series a query, as the panel asks: of a moment, or over the last minute."""
        end = time.time()
        found = []
        for query in panel.queries:
            expr = expand(query.expr, rate_interval="60s", whole="60s", interval="4s")
            if query.table or query.now:
                found.append(len(watcher.query(expr)))
            else:
                found.append(len(watcher.range(expr, end - 60, end, 4)))
        return found

    if not panel.quiet:
        wait_until(lambda: all(lines()), 30, f"data in each query of {board.title} / {panel.title}")
    if panel.kind == "table":
        assert max(lines()) == WORKERS  # a column may have nothing to say of one
    elif panel.kind == "heatmap":
        assert sum(lines()) <= len(TTFT_SECONDS) + 1  # one a bucket
    else:
        assert sum(lines()) <= READABLE, panel.title


def test_the_ten_highest_are_the_same_ten_at_every_moment(watcher: Prometheus) -> None:
    (panel,) = [p for board, p in PANELS if (board.title, p.title) == ("Workers", "Requests")]
    end = time.time()
    expr = expand(panel.queries[0].expr, rate_interval="60s", whole="60s", interval="4s")
    shown = watcher.range(expr, end - 60, end, 4)
    assert len({row["metric"]["worker"] for row in shown}) == len(shown) == 10
    # topk alone: another ten at each moment
    assert len(watcher.range("topk(10, gateway_waiting_tokens)", end - 60, end, 4)) > 10
