"""A small fleet with a real index and a clock that the test turns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import pytest

from gateway.fleet.breaker import BreakerLimits
from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadBoard
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec
from gateway.index.prefix import PrefixIndex
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.prompt.base import Endpoint, PromptRequest, TokenPrompt
from gateway.routing.admission import Admission
from gateway.routing.observer import NullObserver
from gateway.routing.policy import Policy
from gateway.routing.registry import make_policy
from gateway.routing.route import Route
from gateway.routing.router import Router
from gateway.routing.slice_refusals import SliceRefusals
from gateway.routing.slicing import NO_SLICING, Slicing
from gateway.routing.table import PolicyTable
from gateway.types import BlockKey, CacheScope, WorkerId


class TokenIds:
    """Prompts that are token ids already; texts can't be read. `media_at` cuts what is exact."""

    name = "local"

    def __init__(self, exact: bool = True, media_at: int | None = None) -> None:
        self.exact = exact
        self.media_at = media_at

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]:
        if not request.prompts or any(isinstance(p, str) for p in request.prompts):
            return []
        prompts = [array("I", [t for t in p if isinstance(t, int)]) for p in request.prompts]
        return [TokenPrompt(p, len(p) if self.media_at is None else self.media_at) for p in prompts]

    async def close(self) -> None: ...


class Watching(NullObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def decided(self, model: str, policy: str, reason: str, seconds: float) -> None:
        self.seen.append(("decided", model, policy, reason))

    def refused(self, model: str, error: str) -> None:
        self.seen.append(("refused", model, error))

    def delivered(self, worker: WorkerId, promised: int, cached: int) -> None:
        self.seen.append(("delivered", worker, promised, cached))

    def parity(self, model: str, own: int, reported: int) -> None:
        self.seen.append(("parity", model, own, reported))

    def degraded(self, worker: WorkerId, degraded: bool) -> None:
        self.seen.append(("degraded", worker, degraded))


@dataclass
class Fleet:
    now: float = 100.0
    policy: Policy = field(default_factory=lambda: make_policy("estimated_ttft", random=Random(1)))
    encoder: TokenIds | None = field(default_factory=TokenIds)
    admission: Admission | None = None
    guards: Guards = field(default_factory=lambda: Guards(breaker=BreakerLimits(failures=3, open_s=5.0)))
    aliases: dict[str, str] = field(default_factory=dict)
    declared: tuple[str, ...] = ()
    slicing: Slicing = NO_SLICING

    def __post_init__(self) -> None:
        self.index = PrefixIndex()
        self.board = LoadBoard()
        self.registry = Registry(self.board, lambda: self.now, aliases=self.aliases, declared=self.declared)
        self.watching = Watching()
        self.slice_refusals = SliceRefusals(lambda: self.now)
        self.router = Router(
            self.registry,
            self.board,
            self.guards,
            self.index,
            PolicyTable(self.policy),
            lambda model: self.encoder,
            clock=lambda: self.now,
            random=Random(11),
            held=lambda: self.index.stats().held,
            admission=self.admission,
            observer=self.watching,
            slicing=self.slicing,
            slice_refusals=self.slice_refusals,
        )
        self.registry.subscribe(self.router.upkeep)

    def add(self, name: str, info: EngineInfo | None = None, **spec: Any) -> WorkerId:
        """A ready worker that sends events, of model ``m`` with 1000 blocks of 16 unless told otherwise."""
        given = WorkerSpec(f"http://{name}:1", **{"events": f"tcp://{name}:1", **spec})
        worker = self.registry.add(given)
        self.registry.learned(worker.id, Learned(info or EngineInfo("m", capacity_blocks=1000)))
        self.registry.set_health(worker.id, True)
        return worker.id

    def worker(self, worker: WorkerId) -> Worker:
        found = self.registry.get(worker)
        assert found is not None
        return found

    async def route(self, tokens: Sequence[int] = (), **options: Any) -> Route:
        return await self.router.route(ask(tokens), **options)

    def store(self, worker: WorkerId, tokens: Sequence[int], scope: CacheScope | None = None) -> None:
        """The engine says that it holds these tokens' full blocks."""
        self.index.store(worker, keys(tokens, scope))


def keys(tokens: Sequence[int], scope: CacheScope | None = None) -> list[BlockKey]:
    return block_keys(root_key(scope or CacheScope("m")), pack_tokens(tokens))


def ask(tokens: Sequence[int] | str = (), model: str = "m", **fields: Any) -> PromptRequest:
    return PromptRequest(Endpoint.COMPLETIONS, model, prompts=[tokens] if tokens else None, **fields)


MakeFleet: TypeAlias = Callable[..., Fleet]


@pytest.fixture
def make_fleet() -> MakeFleet:
    return Fleet


@pytest.fixture
def token_ids() -> type[TokenIds]:
    return TokenIds


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()
