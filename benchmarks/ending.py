"""How a tool ends that is told to (Ctrl-C, `kill`, a terminal that is closed): in one line, when what it has
started has ended, and with no file half written."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

AT_THE_END = "figures come at the end, so there are none"


class _Told(KeyboardInterrupt):
    """By another signal. Of a KeyboardInterrupt itself that has left code which was given as text (as a
    dataclass's), Python remembers to end by SIGINT, whatever becomes of it."""


def in_one_line(kept: str = AT_THE_END) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Of a tool's `main`: Ctrl-C becomes one line on stderr, which says what is `kept`, or what the
    KeyboardInterrupt was raised with, and exit code 130. The other signals end it in the same way, but
    silently."""

    def decorate(main: Callable[P, R]) -> Callable[P, R]:
        @wraps(main)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            told: list[int] = []

            def interrupt(number: int, frame: FrameType | None) -> None:
                told.append(number)
                if len(told) > 1:
                    return  # it is ending; `timeout` and make tell it both
                handler = signal.getsignal(signal.SIGINT)
                if handler is signal.default_int_handler or not callable(handler):
                    raise _Told
                # an event loop's: an exception is lost where one of its callbacks runs
                handler(signal.SIGINT, frame)

            before = {
                number: signal.signal(number, interrupt)
                for number in (signal.SIGTERM, signal.SIGHUP)
                if signal.getsignal(number) is not signal.SIG_IGN  # under nohup it goes on
            }
            try:
                return main(*args, **kwargs)
            except KeyboardInterrupt as interrupted:
                said = interrupted.args[0] if interrupted.args else kept
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
            if not told:
                # a terminal has shown ^C where the line would begin
                print("\n" * sys.stderr.isatty() + f"interrupted: {said}", file=sys.stderr)
            sys.exit(128 + (told[0] if told else signal.SIGINT))

        return run

    return decorate


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that end this program wait until this has ended: it is what must not be torn."""
    waiting: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for told in waiting:
            signal.raise_signal(told)


def write(path: Path, content: str | bytes) -> None:
    """Also into folders that are not there yet. No signal tears it: what was kept there would be lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with undisturbed():
        path.write_bytes(content.encode() if isinstance(content, str) else content)
