"""What paging and shared prefixes save."""

from __future__ import annotations

import msgspec


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` sequences of `used` tokens each: in contiguous space of `reserved` tokens, and in blocks."""

    requests: int
    reserved: int
    used: int
    wasted_share: float
    """Of the contiguous space, 0…1."""
    wasted_tokens: int
    paged_blocks: int
    """A sequence."""
    paged_wasted_tokens: int
    """Unused places in the last blocks, all sequences."""
    paged_wasted_share: float


def reservation(requests: int, reserved: int, used: int, block_size: int = 16) -> Reservation:
    """Contiguous reservation wastes 1 - used/reserved; paging at most a block less one token a sequence."""
    blocks = -(-used // block_size)
    return Reservation(
        requests=requests,
        reserved=reserved,
        used=used,
        wasted_share=1 - used / reserved,
        wasted_tokens=requests * (reserved - used),
        paged_blocks=blocks,
        paged_wasted_tokens=requests * (blocks * block_size - used),
        paged_wasted_share=1 - used / (blocks * block_size),
    )


def cached_tokens(prefix: int, prompt: int, block_size: int = 16) -> int:
    """Leading tokens of a prompt that a warm cache serves: whole blocks, never the prompt's last token."""
    return min(prefix, prompt - 1) // block_size * block_size
