"""With a hundred workers, every panel still has data, and no more lines than a person can tell apart."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from grafana.boards import BOARDS
from grafana.expand import expand
from grafana.panels import Board, Panel
from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.crowd import MODEL
from tests.e2e.prometheus import Prometheus, prometheus
from tests.e2e.replicas import site
from tests.servers import standalone

pytestmark = pytest.mark.timeout(700)

WORKERS = 100
WITH_EVENTS = 2
READABLE = 12
"""Lines of one panel."""

PANELS = [(board, panel) for board in BOARDS for panel in board.panels()]


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("hundred")
    with standalone(folder / "redis") as redis, site(folder / "site", redis.url) as here:
        noted = folder / "ports"
        here.start([sys.executable, "-m", "tests.e2e.crowd", str(WORKERS - WITH_EVENTS), str(noted)], "crowd")
        wait_until(noted.exists, 60, "the crowd")
        ports = noted.read_text().split()
        engines = [here.engine("sim:fast") for _ in range(WITH_EVENTS)]
        here.wait(*engines)
        flags = [word for port in ports for word in ("--worker", f"http://127.0.0.1:{port}")]
        config = folder / "gateway.yaml"
        # by turns, so that each has something to show: who gets what is not at stake here
        config.write_text("discovery: redis\npolicy: round_robin\nhealth_interval: 15\n")
        gateway = here.gateway("--config", str(config), *flags, engines=engines)
        here.wait(gateway, workers=WORKERS)
        jobs = {
            "prefix-gateway": [gateway.admin.removeprefix("http://")],
            "engines": [*(f"127.0.0.1:{port}" for port in ports), *(e.url[7:] for e in engines)],
        }
        with prometheus(folder / "prometheus", jobs, "4s") as made, traffic(gateway):
            wait_until(lambda: busy_workers(made) == WORKERS, 240, "requests at every worker")
            yield made


def busy_workers(watcher: Prometheus) -> int:
    rows = watcher.query("count (rate(gateway_requests_total{worker!=''}[1m]) > 0)")
    return int(float(rows[0]["value"][1])) if rows else 0


@contextlib.contextmanager
def traffic(gateway: Fleet, clients: int = 4) -> Iterator[None]:
    """Chats that grow, each over one of a few openings, and strangers: every worker gets some."""
    over = threading.Event()

    def client(number: int) -> None:
        draw = random.Random(number)
        chats = [[5 + opening] * 64 for opening in range(number, 40, clients)]
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not over.wait(0.01):
                chat = draw.choice(chats)
                if draw.random() < 0.4 or len(chat) > 400:
                    del chat[64:]
                chat += [draw.randrange(5, 400) for _ in range(32)]
                stranger = [draw.randrange(5, 400) for _ in range(200)]
                body = {
                    "model": MODEL, "prompt": draw.choice((chat, stranger)), "max_tokens": 4, "stream": True,
                }  # fmt: skip
                http.post(gateway.url + "/v1/completions", json=body)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


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
        assert sum(lines()) <= 17  # one a bucket
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
