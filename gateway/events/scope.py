"""From what an engine hashed into its blocks to what our keys are rooted in (docs/block-keys.md).

vLLM mixes extra values into a block's hash and publishes them untagged, in this order: the adapter's name
(every block of a prompt that uses one), the media that the block overlaps, the cache salt (a prompt's first
block only), a digest of prompt embeddings. Media are ``(identifier, offset in the block)``, in older releases
the bare identifier; adapter and salt are bare text; a digest is bytes. SGLang names adapter and salt in
fields of their own, and says nothing of a request's `extra_key`.
"""

from __future__ import annotations

from gateway.kv.events import BlockStored, ExtraKeys
from gateway.types import CacheScope


def root_scope(event: BlockStored, model: str) -> CacheScope:
    """The scope of a store whose first block begins a prompt."""
    adapter = _adapter(event)
    if event.cache_salt:
        return CacheScope(model, adapter, event.cache_salt)
    first = event.extra_keys[0] if event.extra_keys else None
    texts = [extra for extra in _without_adapter(first, adapter) if isinstance(extra, str)]
    # Of bare texts the last is the salt. In an older release it may be the name of a medium: a root of its
    # own then, that no request asks for, since nothing behind a medium's beginning is ever looked up.
    return CacheScope(model, adapter, texts[-1] if texts else "")


def media_extras(event: BlockStored, units: int) -> dict[int, bytes]:
    """Bytes that name the media which a block overlaps, by number of our block. `units` of ours are one of
    the engine's, and all of them get the same."""
    if event.extra_keys is None or not any(event.extra_keys):
        return {}
    adapter = _adapter(event)
    extras: dict[int, bytes] = {}
    for number, extra_keys in enumerate(event.extra_keys):
        rest = _without_adapter(extra_keys, adapter)
        if number == 0 and event.parent_block_hash is None and not event.cache_salt:
            rest = _without_salt(rest)
        if rest:
            named = b"".join(map(_named, rest))
            extras.update(dict.fromkeys(range(number * units, (number + 1) * units), named))
    return extras


def _adapter(event: BlockStored) -> str:
    if event.lora_name:
        return event.lora_name
    # an old release that numbers its adapters and doesn't name them: kept apart from the base model
    return f"\x1elora-{event.lora_id}" if event.lora_id else ""


def _without_adapter(extra_keys: ExtraKeys | None, adapter: str) -> list[object]:
    rest = list(extra_keys or ())
    if adapter and rest and rest[0] == adapter:
        del rest[0]
    return rest


def _without_salt(rest: list[object]) -> list[object]:
    texts = [number for number, extra in enumerate(rest) if isinstance(extra, str)]
    return [extra for number, extra in enumerate(rest) if not texts or number != texts[-1]]


def _named(extra: object) -> bytes:
    """0x1e, what it is called, and, where a place is given, 0x1f and the place in decimal."""
    match extra:
        case bytes():
            return b"\x1e" + extra
        case [name, place]:
            return f"\x1e{name}\x1f{place}".encode()
        case _:
            return f"\x1e{extra}".encode()
