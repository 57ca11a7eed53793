from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from gateway.cli.logs import configure


@pytest.fixture
def lines(tmp_path: Path):
    """What was logged, parsed; the root logger is as before afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    path = tmp_path / "log"
    configure("INFO", access=True, path=path, process=3)

    def read() -> list[dict[str, object]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    yield read
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def test_a_requests_line_and_any_other_have_one_shape(lines) -> None:
    access = logging.getLogger("gateway.access")
    access.info("%s %d", "/v1/x", 200, extra={"fields": {"status": 200, "worker": None, "error": "ü"}})
    logging.getLogger("gateway.other").warning("oh", extra={"worker": "w"})
    mine, other = lines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", str(mine.pop("time")))
    assert mine == {
        "level": "INFO",
        "logger": "gateway.access",
        "message": "/v1/x 200",
        "status": 200,
        "worker": None,
        "error": "ü",
        "process": 3,
    }
    assert other.pop("time")
    assert other == {
        "level": "WARNING", "logger": "gateway.other", "message": "oh", "worker": "w", "process": 3,
    }  # fmt: skip


def test_half_a_surrogate_pair_loses_no_line(lines) -> None:
    logging.getLogger("gateway.access").info("x", extra={"fields": {"error": "\ud800"}})
    (line,) = lines()
    assert line["error"] == "\ud800"
