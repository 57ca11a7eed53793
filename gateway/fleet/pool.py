"""A model's name → who serves it. Pools are made of registered workers, whatever their state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.errors import ConfigError
from gateway.fleet.worker import EngineInfo, Worker
from gateway.kv.keys import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Target:
    """What a name in a request stands for."""

    name: str
    """What to send to the engine."""
    model: str
    """Base model: root of the block keys, owner of tokenizer and policy."""
    adapter: str
    unit: int
    """Tokens in one block key of this pool."""
    workers: tuple[Worker, ...]
    """Registered workers that serve it, in any state; may be empty where the model is only declared."""
    most_tokens: int | None = None
    """Of a prompt that one of them can take; None where some do not say."""


def pool_unit(sizes: Iterable[int]) -> int:
    """Tokens in one block key for engines of these block sizes: 16 where all are multiples of it (such an
    engine's block is several keys, credited only whole), else their common size. Raises ValueError."""
    distinct = set(sizes)
    if all(size % BLOCK_SIZE == 0 for size in distinct):
        return BLOCK_SIZE
    if len(distinct) > 1:
        raise ValueError(
            f"block sizes {sorted(distinct)} can't share one pool: "
            f"either all are multiples of {BLOCK_SIZE}, or all are the same"
        )
    return distinct.pop()


def refuse_mixed_blocks(worker: Worker, model: str, block_size: int, others: Iterable[Worker]) -> None:
    """Raises ConfigError where `worker` can't join the pool of `model` with this block size."""
    pool = {w.id: w.info.block_size for w in others if w.info is not None and w.info.model == model}
    pool.pop(worker.id, None)
    try:
        pool_unit([*pool.values(), block_size])
    except ValueError as error:
        raise ConfigError(f"worker {worker.id!r} can't join the pool of model {model!r}: {error}") from None


def build_targets(
    workers: Iterable[Worker], aliases: Mapping[str, str], declared: Iterable[str] = ()
) -> dict[str, Target]:
    """Every name that may stand in a request. Base models come before adapters of the same name, both
    before aliases; an alias of a name that nobody serves yet counts as declared."""
    pools: dict[str, list[Worker]] = {}
    for worker in workers:
        model = worker.info.model if worker.info is not None else worker.spec.model
        if model is not None:
            pools.setdefault(model, []).append(worker)
    targets: dict[str, Target] = {}
    for model, members in pools.items():
        targets[model] = _target(model, model, "", members)
    for model, members in pools.items():
        for name, adapter in _other_names(members):
            serving = [w for w in members if w.info is not None and name in _names(w.info)]
            sent = _by_colon(model, name, serving) if adapter else name
            targets.setdefault(name, _target(sent, model, name if adapter else "", serving))
            if sent != name:
                targets.setdefault(sent, targets[name])
    for name in declared:
        targets.setdefault(name, nobodys(name, name))
    for alias, name in aliases.items():
        targets.setdefault(alias, targets.get(name) or nobodys(name, name))
    return targets


def nobodys(name: str, model: str) -> Target:
    """What exists, and is served by nobody now."""
    return Target(name, model, "" if name == model else name, BLOCK_SIZE, ())


def _target(name: str, model: str, adapter: str, members: list[Worker]) -> Target:
    unit = pool_unit(w.info.block_size for w in members if w.info is not None)
    most = [None if w.info is None else w.info.most_tokens for w in members]
    known = [tokens for tokens in most if tokens is not None]
    return Target(
        name, model, adapter, unit, tuple(members), max(known) if known and len(known) == len(most) else None
    )


def _by_colon(model: str, adapter: str, serving: list[Worker]) -> str:
    """What those are sent who ask for an adapter."""
    colon = all(w.info is not None and w.info.adapters_by_colon for w in serving)
    return f"{model}:{adapter}" if colon else adapter


def _names(info: EngineInfo) -> tuple[str, ...]:
    return info.served_names + info.adapters


def _other_names(members: list[Worker]) -> Iterable[tuple[str, bool]]:
    for worker in members:
        if worker.info is not None:
            yield from ((name, False) for name in worker.info.served_names)
            yield from ((name, True) for name in worker.info.adapters)
