"""What the block pool tells the world: an ordered log of stores, removals and resets, in vLLM's words."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from gateway.types import BlockKey, CacheScope, EngineHash

DEFAULT_HASH_MASK = 0x5BD1E995A3C4F26B


class CacheEventLog:
    """Collects events until `take`. One log belongs to one pool.

    An engine's block hashes are its own business: here the key xor `hash_mask` (64 bits, one value an
    engine process), so that nobody can read one as a gateway key and must rehash the token ids instead.
    """

    def __init__(self, block_size: int, *, hash_mask: int = DEFAULT_HASH_MASK) -> None:
        self._block_size = block_size
        self._mask = hash_mask
        self._pending: list[KVEvent] = []
        self._adapter_ids: dict[str, int] = {}

    def stored(
        self,
        scope: CacheScope,
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        token_ids: tuple[int, ...],
    ) -> None:
        """Consecutive blocks hold K/V now; `parent` is None where the first of them begins the prompt."""
        mask = self._mask
        self._pending.append(
            BlockStored(
                block_hashes=tuple([key ^ mask for key in keys]),
                parent_block_hash=None if parent is None else parent ^ mask,
                token_ids=token_ids,
                block_size=self._block_size,
                lora_id=self._adapter_id(scope.adapter),
                lora_name=scope.adapter or None,
                extra_keys=_extra_keys(scope, len(keys), first=parent is None),
                group_idx=0,
                kv_cache_spec_kind="full_attention",
            )
        )

    def removed(self, key: BlockKey) -> None:
        """One copy is gone. Each removal is an event of its own, as in vLLM."""
        gone: EngineHash = key ^ self._mask
        self._pending.append(BlockRemoved(block_hashes=(gone,), group_idx=0))

    def cleared(self) -> None:
        self._pending.append(AllBlocksCleared())

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    def take(self) -> tuple[KVEvent, ...]:
        """All events since the last call, in the order in which they happened."""
        if not self._pending:
            return ()
        events = tuple(self._pending)
        self._pending.clear()
        return events

    def _adapter_id(self, adapter: str) -> int | None:
        """Engines number their adapters from 1 in the order in which they meet them."""
        return self._adapter_ids.setdefault(adapter, len(self._adapter_ids) + 1) if adapter else None


def _extra_keys(scope: CacheScope, blocks: int, *, first: bool) -> tuple[tuple[str, ...] | None, ...]:
    """vLLM mixes the adapter's name into every block and the salt into a prompt's first block only."""
    rest = (scope.adapter,) if scope.adapter else None
    if not first or not scope.salt:
        return (rest,) * blocks
    return ((*(rest or ()), scope.salt), *((rest,) * (blocks - 1)))
