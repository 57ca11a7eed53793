"""The follower beside an engine: it writes what the engine holds to Redis, and replicas mirror it.

It competes for the writer's lease like any replica. When it dies a replica takes over, and hands the worker
back when an agent is there again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq.asyncio

from gateway.events.balance import Balance
from gateway.events.followers import Followers
from gateway.events.ports import IndexSink, NullObserver
from gateway.events.share import Share
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.shelf import load_scripts
from gateway.lasting import Lasting
from gateway.store.connection import Store
from gateway.types import WorkerId


def follow(
    registry: Registry,
    store: Store,
    context: zmq.asyncio.Context,
    owner: str,
    random: Callable[[], float],
    lasting: Lasting,
) -> Followers:
    """Followers of all that is in the registry; the caller closes them."""
    index = PrefixIndex()
    share = Share(
        store=store,
        scripts=load_scripts(),
        owner=f"{owner}:{secrets.token_hex(4)}",
        index=index,
        observer=_Unobserved(),
        clock=time.monotonic,
        random=random,
        new_epoch=lambda: secrets.token_hex(8).encode(),
        balance=Balance(random, beside=True),
    )
    followers = Followers(
        IndexSink(index),
        NullObserver(),
        unit_of=registry.unit_of,
        context=context,
        share=share,
        lasting=lasting,
    )
    registry.subscribe(_Members(index, registry))
    registry.subscribe(followers)
    return followers


@dataclass(frozen=True, slots=True)
class _Members:
    """The index knows a worker before its follower does."""

    index: PrefixIndex
    registry: Registry

    def added(self, worker: Worker) -> None:
        self.changed(worker)

    def changed(self, worker: Worker) -> None:
        info = worker.info
        stride = 1 if info is None else info.block_size // self.registry.unit_of(info.model)
        self.index.add_worker(worker.id, stride=stride)

    def removed(self, worker: Worker) -> None:
        self.index.remove_worker(worker.id)


class _Unobserved:
    """An agent exports no metrics; what matters is logged where it happens."""

    def loaded(self, worker: WorkerId, reason: str, blocks: int, seconds: float) -> None:
        pass

    def refilled(self, worker: WorkerId, reason: str) -> None:
        pass

    def took_over(self, worker: WorkerId) -> None:
        pass

    def fenced(self, worker: WorkerId) -> None:
        pass
