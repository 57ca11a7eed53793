"""Functions marked as steps, and what is spent in each: calls, or CPU time of the thread."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any


class Meter:
    """Which step one thread is in; `outside` where it is in none."""

    def __init__(self, outside: str) -> None:
        self.step = outside
        self._around: list[str] = []

    def enter(self, step: str) -> None:
        self._around.append(self.step)
        self.step = step

    def leave(self) -> None:
        self.step = self._around.pop()


class Calls(Meter):
    """By step, how often Python functions were called and others than Python's: a function for
    `sys.setprofile`, while which is set it counts."""

    def __init__(self, outside: str) -> None:
        super().__init__(outside)
        self.python: Counter[str] = Counter()
        self.c: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_filename == _OWN:
            return
        if event == "call":
            self.python[self.step] += 1
        elif event == "c_call":
            self.c[self.step] += 1


class Time(Meter):
    """By step, nanoseconds of this thread since `begin`, and how often its borders were crossed."""

    def __init__(self, outside: str, clock: Callable[[], int] = time.thread_time_ns) -> None:
        super().__init__(outside)
        self._clock = clock
        self._since = 0
        self.ns: Counter[str] = Counter()
        self.borders: Counter[str] = Counter()

    def begin(self) -> None:
        self.ns, self.borders = Counter(), Counter()
        self._since = self._clock()

    def end(self) -> None:
        self._spend()

    def enter(self, step: str) -> None:
        self._spend()
        self.borders[self.step] += 1
        super().enter(step)
        self.borders[step] += 1

    def leave(self) -> None:
        self._spend()
        self.borders[self.step] += 1
        super().leave()
        self.borders[self.step] += 1

    def _spend(self) -> None:
        now = self._clock()
        self.ns[self.step] += now - self._since
        self._since = now


def without_the_clocks(
    ns: Mapping[str, int], borders: Mapping[str, int], plain_ns: float
) -> dict[str, float]:
    """What the steps take without being timed: what all of them took more than `plain_ns` is taken off, by
    the borders that each has."""
    each = max(0.0, sum(ns.values()) - plain_ns) / max(1, sum(borders.values()))
    return {step: spent - each * borders.get(step, 0) for step, spent in ns.items()}


@contextmanager
def stepped(steps: Mapping[str, Sequence[str]], meter: Meter) -> Iterator[None]:
    """The functions of `steps` (``module:name`` or ``module:Class.name``, where they are looked up) tell
    `meter` when they begin and end. Raises AttributeError for one that isn't there."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for step, targets in steps.items():
            for target in targets:
                module, _, path = target.partition(":")
                *above, name = path.split(".")
                owner = functools.reduce(getattr, above, import_module(module))
                function = inspect.getattr_static(owner, name)
                before.append((owner, name, function))
                setattr(owner, name, _marked(function, step, meter))
        yield
    finally:
        for owner, name, function in reversed(before):
            setattr(owner, name, function)


def _marked(function: Callable[..., Any], step: str, meter: Meter) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waiting(*args: Any, **named: Any) -> Any:
            return await _Steps(function(*args, **named), step, meter)

        return waiting

    @functools.wraps(function)
    def marked(*args: Any, **named: Any) -> Any:
        meter.enter(step)
        try:
            return function(*args, **named)
        finally:
            meter.leave()

    return marked


class _Steps:
    """A coroutine that is in its step while it runs, and not while it waits."""

    def __init__(self, coroutine: Any, step: str, meter: Meter) -> None:
        self._coroutine, self._step, self._meter = coroutine, step, meter

    def __await__(self) -> Generator[asyncio.Future[Any] | None, Any, Any]:
        go_on, given = self._coroutine.send, None
        while True:
            self._meter.enter(self._step)
            try:
                awaited = go_on(given)
            except StopIteration as stop:
                return stop.value
            finally:
                self._meter.leave()
            try:
                go_on, given = self._coroutine.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - the coroutine's own matter
                go_on, given = self._coroutine.throw, error


_OWN = Meter.enter.__code__.co_filename
