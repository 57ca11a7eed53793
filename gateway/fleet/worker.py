"""A worker: what the operator said of it, and what its engine said of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from gateway.types import WorkerId

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
"""Of its speed against the others': no two machines differ by more, and scores over it stay numbers."""
Speculates: TypeAlias = Literal["", "vllm", "sglang"]


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What an operator (a flag, a file, discovery) says. All but `url` may be left to the engine to say."""

    url: str
    """Base URL without a trailing slash: ``http://127.0.0.1:8101``."""
    events: str | None = None
    """ZMQ endpoint that the engine publishes KV events on: ``tcp://127.0.0.1:5557``."""
    replay: str | None = None
    topic: str = ""
    """Prefix of the topic to subscribe to; empty takes all."""
    model: str | None = None
    block_size: int | None = None
    capacity_blocks: int | None = None
    max_requests: int | None = None
    weight: float = 1.0
    dp_rank: int | None = None

    @property
    def id(self) -> WorkerId:
        return WorkerId(self.url if self.dp_rank is None else f"{self.url}#dp{self.dp_rank}")


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself (`/v1/models`, `/metrics`, `/version`)."""

    model: str
    """Name of the base model, the root of its block keys."""
    adapters: tuple[str, ...] = ()
    max_model_len: int | None = None
    model_path: str | None = None
    """``root`` of its model entry: a folder or file, where tokenizer files may lie."""
    block_size: int = 16
    capacity_blocks: int = 0
    version: str = ""
    model_entries: tuple[dict[str, object], ...] = ()
    """The `/v1/models` entries as the engine gave them, fields kept."""
    served_names: tuple[str, ...] = ()
    """Further names that the engine itself serves its base model under."""
    adapters_by_colon: bool = False
    """Its adapters are asked for as ``model:adapter``; by its own name one gets the base model (SGLang)."""
    speculates: Speculates = ""
    """Whose metrics say that it drafts tokens before it computes them; empty where none do."""
    most_tokens: int | None = field(init=False, default=None)
    """What the longest prompt may have that it can hold; None where it says nothing about that."""

    def __post_init__(self) -> None:
        # worked out once: decisions ask for it by the thousand
        capacity, longest = self.capacity_blocks * self.block_size, self.max_model_len
        known = [tokens for tokens in (capacity, longest) if tokens]
        object.__setattr__(self, "most_tokens", min(known, default=None))


class WorkerState(Enum):
    STARTING = "starting"
    """Registered; its engine has not answered yet."""
    READY = "ready"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    """Finishes what it has, takes nothing new."""


@dataclass(slots=True, eq=False)
class Worker:
    """One registered worker, live."""

    spec: WorkerSpec
    state: WorkerState = WorkerState.STARTING
    info: EngineInfo | None = None
    reason: str = ""
    """Why it is in this state, in words for a person."""
    since: float = field(default=0.0)
    fails_checks: bool = False
    """It is unhealthy by its health checks alone: its engine has said what it serves, nobody withholds it."""
    id: WorkerId = field(init=False)
    """Its spec's, kept at hand: decisions ask for it by the thousand."""

    def __post_init__(self) -> None:
        self.id = self.spec.id
