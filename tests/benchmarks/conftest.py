"""Traces small enough to replay by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from benchmarks.replay.content import Content
from benchmarks.replay.trace import Names, Trace, TraceRequest, ordered

UNIT = 16


@pytest.fixture
def toy() -> Callable[..., Content]:
    """Requests as (arrival, "a b c", output tokens, parent): each letter is a full block of 16 tokens; one
    more token ends every prompt, so that all its letters can be served from a cache."""

    def make(requests: Sequence[tuple[float, str, int, int | None]]) -> Content:
        names = Names()
        rows = []
        for number, (arrival, letters, output, parent) in enumerate(requests):
            labels = letters.split()
            rows.append(
                TraceRequest(
                    arrival=arrival,
                    input_tokens=UNIT * len(labels) + 1,
                    output_tokens=output,
                    ids=names.path([*labels, f"tail {number}"]),
                    parent=parent,
                )
            )
        trace: Trace = ordered("toy", UNIT, rows)
        return Content(trace, UNIT)

    return make
