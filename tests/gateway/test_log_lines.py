from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import ssl
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
    logging.getLogger("asyncio").filters.clear()
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


def test_a_handshake_that_nobody_waits_for_is_a_line_and_no_traceback(lines) -> None:
    """Once in a while; what is no matter of TLS stays as it is."""

    async def forget() -> None:
        for error in (ssl.SSLError(1, "no"), ssl.SSLError(1, "no"), ValueError("ours")):
            asyncio.get_running_loop().create_future().set_exception(error)  # and nobody asks for it
            gc.collect()

    asyncio.run(forget())
    first, ours = lines()
    assert (first["level"], first["message"]) == ("WARNING", "a TLS connection failed")
    assert "exc_info" not in first
    assert first["reason"]
    assert ours["level"] == "ERROR"
    assert str(ours["message"]).startswith("Future exception was never retrieved")
    assert "ValueError: ours" in str(ours["exc_info"])
