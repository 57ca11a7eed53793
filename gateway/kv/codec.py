"""KV event batches as bytes: msgpack ``[ts, [events], dp_rank]``.

Several generations of publishers are understood, also mixed in one batch:

- events as maps with a ``type``, fields at their default left out (vLLM from 0.24, newer SGLang);
- events as arrays ``[tag, fields in order]``, of every length that a release sent (vLLM up to 0.23, SGLang);
- maps whose tokens are pairs, each with the token behind it (SGLang with a draft model of EAGLE's kind);
- the batch itself as a map, which vLLM's development branch sends.

A batch of one form, the rule, is decoded in one call. Only where that fails is each event looked at alone, so
that one bad event never costs its neighbours.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from gateway.errors import EventDecodeError
from gateway.kv.events import GPU, AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, ExtraKeys, KVEvent
from gateway.types import EngineHash

TAGS = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})

_UNREADABLE = (msgspec.DecodeError, RecursionError)  # the latter where arrays nest beyond all sense


def decode_batch(payload: bytes) -> EventBatch:
    """Reads one payload. Events that can't be read are counted, unknown types ignored and counted.

    Raises EventDecodeError where the payload is not a batch at all.
    """
    try:
        batch = _maps.decode(payload)
        return EventBatch(batch.ts, batch.events, batch.dp_rank)
    except _UNREADABLE:
        pass
    try:
        pairs = _pairs.decode(payload)
        return EventBatch(pairs.ts, tuple(map(_unpaired, pairs.events)), pairs.dp_rank)
    except _UNREADABLE:
        pass
    try:
        arrays = _arrays.decode(payload)
    except _UNREADABLE:
        return _decode_one_by_one(payload)
    return EventBatch(arrays.ts, tuple([event.read() for event in arrays.events]), arrays.dp_rank)


def encode_batch(batch: EventBatch) -> bytes:
    """Writes a batch as vLLM 0.32 does: events as maps, the fields that it leaves out at None left out, and
    without those that it does not have."""
    events = [_written(event) for event in batch.events]
    return _encoder.encode(_WireBatch(batch.ts, events, batch.dp_rank))


# the wire's shapes


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = GPU
    lora_name: str | None = None
    extra_keys: tuple[ExtraKeys | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    def read(self) -> BlockStored:
        return BlockStored(
            self.block_hashes,
            self.parent_block_hash,
            self.token_ids,
            self.block_size,
            self.lora_id,
            self.medium,
            self.lora_name,
            self.extra_keys,
            self.group_idx,
            self.kv_cache_spec_kind,
            self.kv_cache_spec_sliding_window,
        )


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: tuple[EngineHash, ...]
    medium: str | None = GPU
    group_idx: int | None = None

    def read(self) -> BlockRemoved:
        return BlockRemoved(self.block_hashes, self.medium, self.group_idx)


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    def read(self) -> AllBlocksCleared:
        return AllBlocksCleared()


class _PairedStored(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: tuple[tuple[int, int], ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = GPU
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None

    def read(self) -> BlockStored:
        size = max(1, self.block_size)
        return BlockStored(
            self.block_hashes,
            self.parent_block_hash,
            tuple([token for token, _ in self.token_ids]),
            self.block_size,
            self.lora_id,
            self.medium,
            self.lora_name,
            session_id=self.session_id,
            lookahead_token_ids=tuple([(behind,) for _, behind in self.token_ids[size - 1 :: size]]),
            cache_salt=self.cache_salt,
        )


_PairedEvent: TypeAlias = _PairedStored | BlockRemoved | AllBlocksCleared
_EventArray: TypeAlias = _StoredArray | _RemovedArray | _ClearedArray


class _BatchOfMaps(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: tuple[KVEvent, ...]
    dp_rank: int | None = None


class _BatchOfPairs(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: tuple[_PairedEvent, ...]
    dp_rank: int | None = None


class _BatchOfArrays(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: tuple[_EventArray, ...]
    dp_rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True):
    ts: float
    events: tuple[msgspec.Raw, ...]
    dp_rank: int | None = None


class _RawBatchMap(msgspec.Struct):
    ts: float
    events: tuple[msgspec.Raw, ...]
    data_parallel_rank: int | None = None


# what vLLM writes: unlike ours, `lora_id`, `medium` and `lora_name` have no default there and are always sent


class _WireStored(msgspec.Struct, tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: tuple[ExtraKeys | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class _WireRemoved(msgspec.Struct, tag="BlockRemoved", omit_defaults=True, gc=False):
    block_hashes: tuple[EngineHash, ...]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class _WireBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_WireStored | _WireRemoved | AllBlocksCleared]
    data_parallel_rank: int | None


_maps = msgspec.msgpack.Decoder(_BatchOfMaps)
_pairs = msgspec.msgpack.Decoder(_BatchOfPairs)
_arrays = msgspec.msgpack.Decoder(_BatchOfArrays)
_raw = msgspec.msgpack.Decoder(_RawBatch)
_raw_map = msgspec.msgpack.Decoder(_RawBatchMap)
_event_map: msgspec.msgpack.Decoder[KVEvent] = msgspec.msgpack.Decoder(KVEvent)
_event_pairs: msgspec.msgpack.Decoder[_PairedEvent] = msgspec.msgpack.Decoder(_PairedEvent)
_event_array: msgspec.msgpack.Decoder[_EventArray] = msgspec.msgpack.Decoder(_EventArray)
_anything = msgspec.msgpack.Decoder()
_encoder = msgspec.msgpack.Encoder()


def _decode_one_by_one(payload: bytes) -> EventBatch:
    batch = _raw_batch(payload)
    events: list[KVEvent] = []
    malformed = ignored = 0
    for raw in batch.events:
        event = _decode_event(raw)
        if event is not None:
            events.append(event)
        elif _is_unknown(raw):
            ignored += 1
        else:
            malformed += 1
    return EventBatch(batch.ts, tuple(events), batch.dp_rank, malformed, ignored)


def _raw_batch(payload: bytes) -> _RawBatch:
    try:
        return _raw.decode(payload)
    except _UNREADABLE:
        pass
    try:
        batch = _raw_map.decode(payload)
    except _UNREADABLE as error:
        raise EventDecodeError(f"not a batch of KV events: {error}") from error
    return _RawBatch(batch.ts, batch.events, batch.data_parallel_rank)


def _decode_event(raw: msgspec.Raw) -> KVEvent | None:
    try:
        return _event_map.decode(raw)
    except _UNREADABLE:
        pass
    try:
        return _unpaired(_event_pairs.decode(raw))
    except _UNREADABLE:
        pass
    try:
        return _event_array.decode(raw).read()
    except _UNREADABLE:
        return None


def _unpaired(event: _PairedEvent) -> KVEvent:
    return event.read() if isinstance(event, _PairedStored) else event


def _is_unknown(raw: msgspec.Raw) -> bool:
    """Whether it is an event in form, of a type that we have no name for."""
    try:
        event: Any = _anything.decode(raw)
    except _UNREADABLE:
        return False
    if isinstance(event, dict):
        tag = event.get("type")
    else:
        tag = event[0] if isinstance(event, list) and event else None
    return isinstance(tag, str) and tag not in TAGS


def _written(event: KVEvent) -> _WireStored | _WireRemoved | AllBlocksCleared:
    match event:
        case BlockStored():
            return _WireStored(
                event.block_hashes,
                event.parent_block_hash,
                event.token_ids,
                event.block_size,
                event.lora_id,
                event.medium,
                event.lora_name,
                event.extra_keys,
                event.group_idx,
                event.kv_cache_spec_kind,
                event.kv_cache_spec_sliding_window,
                event.locality,
                event.ownership,
                event.session_id,
            )
        case BlockRemoved():
            return _WireRemoved(
                event.block_hashes, event.medium, event.group_idx, event.locality, event.ownership
            )
        case _:
            return event
