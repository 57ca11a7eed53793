"""Headless Chromium of Debian's, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.debian import Program, program

_SHELL = "chromium-headless-shell"


def _chromium() -> Program:
    for name in (_SHELL, "chromium"):
        if path := shutil.which(name):
            return Program(Path(path))
    return program(_SHELL, _SHELL, folder="usr/lib/chromium")[_SHELL]


@contextmanager
def browser() -> Iterator[Browser]:
    chromium = _chromium()
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=str(chromium.path),
            env={**os.environ, **chromium.env},
            # tests run as root in containers, where Chromium's sandbox can't
            args=["--no-sandbox", "--disable-gpu"],
        )
        try:
            yield made
        finally:
            made.close()
