"""What a diagnosis is made from: collected at the edge (`collect`, `prometheus`), judged by pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.diagnosis.divergence import Divergence
from gateway.diagnosis.series import Series
from gateway.diagnosis.turns import TurnRow


class EventsFacts(msgspec.Struct, frozen=True):
    state: str = ""
    reason: str = ""
    gaps: int = 0
    epochs: int = 0
    endpoint: str = ""
    """Where the gateway listens for them."""
    mirror: str = ""
    """How current this replica's mirror is of what another one hears; empty where it hears them itself."""


class PromiseFacts(msgspec.Struct, frozen=True):
    promises: int = 0
    promised_tokens: int = 0
    short_tokens: int = 0
    drift: float = 0.0
    degraded: bool = False


class WorkerRow(msgspec.Struct, frozen=True):
    """One line of a replica's `GET /admin/workers`."""

    id: str
    url: str = ""
    state: str = ""
    reason: str = ""
    refusal: str | None = None
    model: str | None = None
    block_size: int | None = None
    capacity_blocks: int = 0
    indexed_blocks: int = 0
    promise: PromiseFacts = PromiseFacts()
    events: EventsFacts | None = None


class ReuseFacts(msgspec.Struct, frozen=True):
    window_s: float = 0.0
    blocks: float = 0.0
    distinct_blocks: float = 0.0
    ceiling: float = 0.0
    curve: tuple[tuple[int, float], ...] = ()


class TrafficFacts(msgspec.Struct, frozen=True):
    """One model of a replica's `GET /admin/traffic`."""

    block_size: int = 16
    capacity_blocks: int = 0
    hit_rate_now: float = 0.0
    reuse: ReuseFacts = ReuseFacts()
    turns: tuple[TurnRow, ...] = ()
    divergence: Divergence = Divergence(0, 0, 0.0, ())


@dataclass(frozen=True, slots=True)
class Replica:
    """One gateway process. Rows are None where its admin port was not asked."""

    name: str
    series: Series
    before: Sequence[WorkerRow] | None = None
    """Its workers when the window began."""
    after: Sequence[WorkerRow] | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    traffic: Mapping[str, TrafficFacts] = field(default_factory=dict)
    clock_offset_s: float | None = None
    """How far its clock is ahead of the one that looked; None where it did not say."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine process, as it describes itself."""

    url: str
    model: str
    series: Series
    error: str = ""
    """Why its metrics could not be read."""
    clock_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    window_s: float
    replicas: Sequence[Replica]
    engines: Sequence[Engine]


def worker_rows(answer: Any) -> tuple[WorkerRow, ...]:
    """Of `GET /admin/workers`. Raises msgspec.ValidationError."""
    return msgspec.convert(answer["workers"], tuple[WorkerRow, ...])


def traffic_facts(answer: Any) -> dict[str, TrafficFacts]:
    """Of `GET /admin/traffic`. Raises msgspec.ValidationError."""
    return msgspec.convert(answer["models"], dict[str, TrafficFacts])
