"""The block pool: how many blocks fit, and how many of them a sequence takes.

Counted as vLLM counts them (`vllm/v1/core/kv_cache_utils.py`, 0.32): all block tables of a model draw from
one pool of equal blocks. A model whose layers are alike has one table. One that mixes full and sliding layers
has several, each for the same number of layers of one kind, so that their blocks have one size.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.planning.precision import KvPrecision, layer_token_bytes, state_bytes
from gateway.planning.shape import LayerKv, ModelShape

IN_FLIGHT_STEPS = 2
"""Steps that are scheduled and not yet settled, each with up to max-num-batched-tokens: asynchronous
scheduling prepares one while another runs. Until then blocks that left a window are still held."""


@dataclass(frozen=True, slots=True)
class BlockTable:
    """One block table a sequence, for some layers of one kind."""

    block_tokens: int
    window: int | None
    chunked: bool = False

    def blocks_for(self, tokens: int, in_flight: int) -> int:
        if self.window is None:
            return -(-tokens // self.block_tokens)
        if self.chunked:
            return -(-min(self.window + in_flight, tokens) // self.block_tokens)
        kept = min(self.window - 1 + in_flight, tokens)
        # a window need not begin at a block's first token
        return -(-kept // self.block_tokens) + 1

    def held_by(self, tokens: int) -> int:
        """Blocks of a sequence that decodes: its window has slid, nothing else is in flight. A chunk is
        counted full, as it is just before the next begins."""
        whole = -(-tokens // self.block_tokens)
        return whole if self.window is None else min(whole, self.blocks_for(tokens, in_flight=1))


@dataclass(frozen=True, slots=True)
class BlockPool:
    tables: tuple[BlockTable, ...]
    block_bytes: int
    """Bytes of one block of the pool on one GPU."""
    blocks: int
    in_flight: int
    state_blocks: int
    """Blocks' worth of linear-attention state a sequence."""

    @property
    def usable(self) -> int:
        """The engine keeps one block for itself (vLLM's null block)."""
        return max(0, self.blocks - 1)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that one sequence of `tokens` reserves at most."""
        return sum(table.blocks_for(tokens, self.in_flight) for table in self.tables) + self.state_blocks

    def held_by(self, tokens: int) -> int:
        """Blocks that a decoding sequence of `tokens` really holds; differs for sliding windows alone."""
        return sum(table.held_by(tokens) for table in self.tables) + self.state_blocks

    def concurrency(self, tokens: int) -> float:
        """Sequences of `tokens` at once: what vLLM prints as "Maximum concurrency"."""
        return self.blocks / self.blocks_for(tokens)

    def longest(self, limit: int) -> int:
        """Tokens of the longest sequence that fits alone, up to `limit`; 0 if none does."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= self.usable:
                low = middle
            else:
                high = middle - 1
        return low


def block_pool(
    shape: ModelShape,
    precision: KvPrecision,
    *,
    budget: int,
    block_size: int = 16,
    tensor_parallel: int = 1,
    batched_tokens: int = 2048,
) -> BlockPool:
    """The pool that `budget` bytes on each GPU hold."""
    layers: dict[LayerKv, int] = {}
    for each in shape.attention:
        layers[each.kv] = layers.get(each.kv, 0) + each.count
    pages = {kv: block_size * layer_token_bytes(kv, precision, tensor_parallel) for kv in layers}
    page = max(pages.values())
    per_table = _layers_a_table(list(layers.values()))
    tables = []
    for kv, count in layers.items():
        # a kind with smaller pages gets longer blocks where that comes out even, padding otherwise
        longer = page // pages[kv] if page % pages[kv] == 0 else 1
        tables += [BlockTable(block_size * longer, kv.window, kv.chunked)] * -(-count // per_table)
    block_bytes = per_table * page
    return BlockPool(
        tables=tuple(tables),
        block_bytes=block_bytes,
        blocks=max(0, budget // block_bytes),
        in_flight=IN_FLIGHT_STEPS * batched_tokens,
        state_blocks=-(-state_bytes(shape, tensor_parallel) // block_bytes),
    )


def _layers_a_table(counts: list[int]) -> int:
    """The rarest kind's count, unless the kinds are nearly even: then padding to the larger costs less."""
    rarest, commonest = min(counts), max(counts)
    return commonest if commonest < 1.5 * rarest else rarest
