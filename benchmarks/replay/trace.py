"""What a trace is, whatever file it came from: requests with times, lengths and named blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TraceRequest:
    arrival: float
    """Seconds from the trace's begin, at its own pace."""
    input_tokens: int
    output_tokens: int
    ids: tuple[int, ...]
    """One name a block of the trace's unit, the last one's may be begun only. A name stands for the block and
    all before it: equal names, equal prefixes."""
    parent: int | None = None
    """Number of the request whose answer must be there before this one can be asked."""
    think_s: float = 0.0
    """At least so long after that answer, at the trace's own pace."""
    session: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    unit: int
    """Tokens in one named block."""
    requests: tuple[TraceRequest, ...]
    """In order of arrival; a parent comes before its children."""

    @property
    def rate(self) -> float:
        """Requests a second at the trace's own pace."""
        last = self.requests[-1].arrival if self.requests else 0.0
        return len(self.requests) / last if last else 0.0

    def working_set(self) -> int:
        """Tokens of all distinct blocks of prompts: what an infinite cache would hold of them."""
        return len({block for request in self.requests for block in request.ids}) * self.unit


class Names:
    """Gives every path of block names its own number, so that names which a file uses only locally, or which
    say nothing of what comes before, become names of prefixes."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, object], int] = {}

    def path(self, labels: Iterable[object]) -> tuple[int, ...]:
        numbers = self._numbers
        path: list[int] = []
        parent = -1
        for label in labels:
            parent = numbers.setdefault((parent, label), len(numbers))
            path.append(parent)
        return tuple(path)


def ordered(name: str, unit: int, requests: Sequence[TraceRequest]) -> Trace:
    """Sorted by arrival, parents renumbered; time begins with the first."""
    order = sorted(range(len(requests)), key=lambda number: (requests[number].arrival, number))
    place = {number: new for new, number in enumerate(order)}
    begin = requests[order[0]].arrival if order else 0.0
    return Trace(
        name,
        unit,
        tuple(
            replace(
                requests[number],
                arrival=requests[number].arrival - begin,
                parent=None if parent is None else place[parent],
            )
            for number in order
            for parent in (requests[number].parent,)
        ),
    )


def shortened(trace: Trace, *, skip: int = 0, limit: int | None = None, longest: int | None = None) -> Trace:
    """Of the requests with at most `longest` tokens in all `limit` from the `skip`-th on. A request whose
    parent was left out waits for nobody; time begins with the first."""
    kept: list[TraceRequest] = []
    place: dict[int, int] = {}
    begin, skipped = 0.0, False
    for number, request in enumerate(trace.requests):
        if limit is not None and len(kept) >= limit:
            break
        if longest is not None and request.input_tokens + request.output_tokens > longest:
            continue
        if skip > 0:
            skip -= 1
            skipped = True
            continue
        if skipped and not kept:
            begin = request.arrival
        place[number] = len(kept)
        parent = None if request.parent is None else place.get(request.parent)
        kept.append(replace(request, parent=parent, arrival=request.arrival - begin))
    return Trace(trace.name, trace.unit, tuple(kept))


def coarser(trace: Trace, unit: int) -> Trace:
    """The same trace with blocks of `unit` tokens, a multiple of its own: several become one, named by its
    last. What two prompts share in a part of such a block is lost; it makes long prompts cheap to replay."""
    if unit == trace.unit:
        return trace
    factor, rest = divmod(unit, trace.unit)
    if rest or factor < 1:
        raise ValueError(f"blocks of {unit} tokens are not made of whole blocks of {trace.unit}")
    requests = []
    for request in trace.requests:
        ids = request.ids[factor - 1 :: factor]
        if len(request.ids) % factor:
            ids = (*ids, request.ids[-1])
        requests.append(replace(request, ids=ids))
    return Trace(trace.name, unit, tuple(requests))
