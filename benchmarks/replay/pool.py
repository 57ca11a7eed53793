"""Calls of one function, over several processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import active_children, get_context
from threading import Thread
from typing import Any, TypeVar

from benchmarks.ending import undisturbed

R = TypeVar("R")


def completed(
    call: Callable[..., R], arguments: Sequence[tuple[Any, ...]], jobs: int, *, anew: bool = False
) -> Generator[tuple[int, R]]:
    """The place of its arguments and the result, of each call as it ends; `anew`, each in a process of its
    own, with which is gone what it has allocated. Raises what a call raises. Who stops before the end closes
    this (`contextlib.closing`): then, and where a signal ends this program, the processes end where they are.
    """
    pool = ProcessPoolExecutor(
        min(jobs, len(arguments)) or 1,
        mp_context=get_context("spawn"),
        max_tasks_per_child=1 if anew else None,
    )
    places: dict[Future[R], int] = {}
    try:
        # Ctrl-C reaches every process of a terminal. Those to come inherit that they do not hear it: this one
        # ends them, and each would tell of it in a traceback of its own
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for place, own in enumerate(arguments):
                places[pool.submit(call, *own)] = place
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for done in as_completed(places):
            yield places[done], done.result()
    except BaseException:
        with undisturbed():
            over = Thread(target=partial(pool.shutdown, cancel_futures=True))
            over.start()
            while over.is_alive():  # again, for one may just be taking another's place
                for process in active_children():
                    process.terminate()
                over.join(0.05)
        raise
    pool.shutdown()
