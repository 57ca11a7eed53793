"""Traffic that a trace has not: the same requests in bursts, with strangers among them, behind a prompt that
many share, or with documents that nobody else has.

All is counted in requests, sessions and tokens, none in seconds, so it is the same at every rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from benchmarks.replay.trace import Names, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Bursts:
    """Of every `requests` in a row all come in the last of `times` parts of their time, and so as many times
    as fast; before that nobody does. A next turn still waits for its answer."""

    requests: int
    times: float

    def __str__(self) -> str:
        return f"bursts of {self.requests} at {self.times:g} times the rate"


@dataclass(frozen=True, slots=True)
class Beginning:
    """A `share` of the sessions has so many tokens before all of its prompts, in whole blocks of the trace's
    own."""

    share: float
    tokens: int

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens before {self.share:.0%} of the sessions"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is changed of a trace. Which sessions are concerned is drawn for each by itself."""

    bursts: Bursts | None = None
    cold: float = 0.0
    """The share of sessions of which every request becomes a stranger's: nobody has any block of it, nobody
    comes back for it, and it waits for no answer."""
    hot: Beginning | None = None
    """These tokens are the same for all of them."""
    documents: Beginning | None = None
    """These are each session's own."""

    def __str__(self) -> str:
        parts = (
            self.bursts,
            f"{self.cold:.0%} strangers" if self.cold else None,
            f"the same {self.hot}" if self.hot else None,
            f"own {self.documents}" if self.documents else None,
        )
        return ", ".join(str(part) for part in parts if part)

    def prompts(self, trace: Trace, seed: int) -> Trace:
        """The trace with the prompts of such traffic."""
        if self == Traffic(bursts=self.bursts):
            return trace
        names = Names()
        changed = tuple(self._changed(trace, number, names, seed) for number in range(len(trace.requests)))
        return replace(trace, requests=changed)

    def times(self, trace: Trace) -> Trace:
        """The trace with the times of such traffic, of which it has the prompts; its name says all of it. To
        be asked for what is replayed, for each burst has its time before it. Raises ValueError where those
        are less than two bursts: how long they take is not told by one."""
        if self == AS_IT_IS:
            return trace
        requests = list(trace.requests)
        if (bursts := self.bursts) is not None:
            if len(requests) < 2 * bursts.requests:
                raise ValueError(
                    f"--bursts: {len(requests)} requests are less than two bursts of {bursts.requests}"
                )
            requests = list(_in_bursts(requests, bursts))
        return Trace(f"{trace.name}, {self}", trace.unit, tuple(requests))

    def _changed(self, trace: Trace, number: int, names: Names, seed: int) -> TraceRequest:
        request = trace.requests[number]
        labels: list[object] = list(request.ids)
        before = 0
        # who has no session is drawn alone, as are strangers: what they begin with is theirs
        session = request.session or f"request {number}"
        if _drawn("cold", session, seed) < self.cold:
            session = f"{session}, {number}"
            labels[0] = (number, labels[0])
            request = replace(request, parent=None, think_s=0.0, session=session)
        for kind, one, owner in (("hot", self.hot, ""), ("document", self.documents, session)):
            if one is not None and _drawn(kind, session, seed) < one.share:
                blocks = -(-one.tokens // trace.unit)
                labels = [*((kind, owner, place) for place in range(blocks)), *labels]
                before += blocks * trace.unit
        return replace(request, ids=names.path(labels), input_tokens=request.input_tokens + before)


AS_IT_IS = Traffic()


def _in_bursts(requests: list[TraceRequest], bursts: Bursts) -> Iterator[TraceRequest]:
    for first in range(0, len(requests), bursts.requests):
        group = requests[first : first + bursts.requests]
        end = group[-1].arrival
        for request in group:
            yield replace(request, arrival=end - (end - request.arrival) / bursts.times)


def _drawn(kind: str, session: str, seed: int) -> float:
    """From 0 to 1, the same for a session whatever else is changed."""
    return Random(f"{seed}/{kind}/{session}").random()
