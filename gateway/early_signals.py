"""SIGHUP and SIGUSR2 while a gateway starts: they end a process that has not said what they mean to it, and
that takes a moment. Whoever rolls out a configuration just then gets what was asked for, a little later."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

NUMBERS = (signal.SIGHUP, signal.SIGUSR2)


class _Noted:
    """In place of a handler, until there is one."""

    def __init__(self) -> None:
        self.heard = False

    def __call__(self, number: int, frame: object) -> None:
        self.heard = True


def note() -> None:
    for number in NUMBERS:
        signal.signal(number, _Noted())


def take_over(loop: asyncio.AbstractEventLoop, number: int, callback: Callable[..., Any], *args: Any) -> bool:
    """`loop.add_signal_handler`. True where the signal came before, and is to be made up for."""
    before = signal.getsignal(number)
    loop.add_signal_handler(number, callback, *args)
    return isinstance(before, _Noted) and before.heard
