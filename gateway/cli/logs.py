"""Logging: JSON lines, one event each. Configured by commands, never at import."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from gateway.cli.tls_lines import TlsLines

ACCESS = "gateway.access"


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
        Lines(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            json_ensure_ascii=False,
            static_fields={} if process is None else {"process": process},
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger(ACCESS).setLevel("INFO" if access else "WARNING")
    logging.getLogger("asyncio").filters[:] = [TlsLines()]
    # one line a probe is no news
    for chatty in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(chatty).setLevel("WARNING")


class Lines(JsonFormatter):
    """A request's line has its fields ready (`fields` of its record), and is written in one go: going over
    all attributes of a record would be a good part of what a request costs."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if record.name != ACCESS or fields is None:
            return str(super().format(record))
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
            **self.static_fields,
        }
        text = json.dumps(line, ensure_ascii=False)
        # half of a surrogate pair, in a client's own words, has to stay an escape
        return text.encode("utf-8", "backslashreplace").decode()
