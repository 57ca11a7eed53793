"""What the generating endpoints have in common about an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from workers.api.choice import Delta
from workers.api.errors import ApiError
from workers.api.logprobs import TokenText
from workers.api.usage import UsageCount
from workers.types import FinishReason, TokenLogprobs

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerInfo:
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str
    text_of: TokenText
    report_cached: bool
    """Whether `usage.prompt_tokens_details` is filled in."""


@dataclass(slots=True)
class Outcome:
    """All deltas of one choice together."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs.append(delta.logprobs)
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


class Answer(Protocol):
    """How one endpoint writes an answer: as the events of a stream, or as one body."""

    names_events: ClassVar[bool]
    """Whether events are sent under the name of their `type`; if not, ``[DONE]`` ends their stream."""

    def chunks(self, delta: Delta) -> Iterable[Json]: ...

    def ending(self, usage: UsageCount) -> Iterable[Json]:
        """What follows the last delta."""
        ...

    def broken_off(self, error: ApiError) -> Json:
        """The last event of a stream that can't go on."""
        ...

    def full(self, outcomes: Sequence[Outcome], usage: UsageCount) -> Json: ...
