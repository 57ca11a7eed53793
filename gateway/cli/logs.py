"""Logging: JSON lines, one event each. Configured by commands, never at import."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pythonjsonlogger.json import JsonFormatter


def configure(level: str, *, access: bool, path: Path | None = None, process: int | None = None) -> None:
    """To stderr, or to the file `path`. Without `access` the line a request is left out. One `process` of
    several names itself in each line, and adds to the file that the supervisor began."""
    handler: logging.Handler
    handler = (
        logging.StreamHandler(sys.stderr)
        if path is None
        else logging.FileHandler(path, mode="w" if process is None else "a", encoding="utf-8")
    )
    handler.setFormatter(
        JsonFormatter(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            json_ensure_ascii=False,
            static_fields={} if process is None else {"process": process},
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("gateway.access").setLevel("INFO" if access else "WARNING")
    # one line a probe is no news
    for chatty in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(chatty).setLevel("WARNING")
