"""KV event batches on the wire: recorded ones, older forms, damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EventDecodeError
from gateway.kv.codec import decode_batch, encode_batch
from gateway.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent

DATA = Path(__file__).parents[2] / "data" / "kv_events"
VERSIONS = ("0.28.0", "0.32.0")
pack = msgspec.msgpack.encode


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def read(recorded: dict[str, Any]) -> KVEvent:
    """An event of decoded-*.jsonl as ours."""
    fields = {name: value for name, value in recorded.items() if name != "type"}
    for name in ("block_hashes", "token_ids"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if fields.get("extra_keys") is not None:
        fields["extra_keys"] = tuple(None if keys is None else tuple(keys) for keys in fields["extra_keys"])
    kinds: dict[str, Any] = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved}
    made: KVEvent = kinds.get(recorded["type"], AllBlocksCleared)(**fields)
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_batches_decode_to_what_the_engine_said(version: str) -> None:
    decoded = lines(f"decoded-{version}.jsonl")
    recorded = lines(f"events-{version}.jsonl")
    assert [batch["seq"] for batch in recorded] == [batch["seq"] for batch in decoded] == list(range(31))
    for raw, expected in zip(recorded, decoded, strict=True):
        events = tuple(read(event) for event in expected["events"])
        batch = decode_batch(bytes.fromhex(raw["payload_hex"]))
        assert batch == EventBatch(expected["ts"], events, expected["dp_rank"])


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_batches_encode_to_the_same_bytes(version: str) -> None:
    for raw in lines(f"events-{version}.jsonl"):
        payload = bytes.fromhex(raw["payload_hex"])
        assert encode_batch(decode_batch(payload)) == payload


@pytest.mark.parametrize("version", ["0.16.0", "0.20.2"])
def test_the_array_form_says_the_same_as_the_map_form(version: str) -> None:
    arrays = [line for line in lines("events-array-form.jsonl") if line["as_version"] == version]
    maps = lines("events-0.28.0.jsonl")
    assert len(arrays) == len(maps)
    for old, new in zip(arrays, maps, strict=True):
        ours = decode_batch(bytes.fromhex(old["payload_hex"]))
        assert (ours.malformed, ours.ignored) == (0, 0)
        said = decode_batch(bytes.fromhex(new["payload_hex"])).events
        assert len(ours.events) == len(said)
        for event, expected in zip(ours.events, said, strict=True):
            match expected:
                case BlockStored():
                    assert isinstance(event, BlockStored)
                    assert event.block_hashes == expected.block_hashes
                    assert event.parent_block_hash == expected.parent_block_hash
                    assert event.token_ids == expected.token_ids
                    assert (event.block_size, event.medium) == (16, "GPU")
                    newer = version == "0.20.2"
                    assert event.extra_keys == (expected.extra_keys if newer else None)
                    assert event.group_idx == (0 if newer else None)
                case BlockRemoved():
                    assert isinstance(event, BlockRemoved)
                    assert event.block_hashes == expected.block_hashes
                case _:
                    assert event == AllBlocksCleared()


def test_defaults_are_left_out_where_vllm_leaves_them_out() -> None:
    stored = BlockStored((1,), None, tuple(range(16)), 16)
    batch = EventBatch(1.5, (stored, BlockRemoved((1,)), AllBlocksCleared()))
    assert msgspec.msgpack.decode(encode_batch(batch)) == [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [1],
                "parent_block_hash": None,
                "token_ids": list(range(16)),
                "block_size": 16,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            },
            {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ],
        None,
    ]


STORED = BlockStored((1, 2), 9, tuple(range(32)), 16)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([[1, 2], 9, list(range(32)), 16], STORED),
        ([[1, 2], 9, list(range(32)), 16, None], STORED),
        ([[1, 2], 9, list(range(32)), 16, None, None], msgspec.structs.replace(STORED, medium=None)),
        (
            [[1, 2], 9, list(range(32)), 16, 3, "GPU", "sql"],
            msgspec.structs.replace(STORED, lora_id=3, lora_name="sql"),
        ),
        (
            [
                [1, 2],
                9,
                list(range(32)),
                16,
                None,
                "GPU",
                None,
                [["salt"], None],
                1,
                "full_attention",
                None,
                "later",
            ],
            msgspec.structs.replace(
                STORED, extra_keys=(("salt",), None), group_idx=1, kv_cache_spec_kind="full_attention"
            ),
        ),
    ],
    ids=["no lora", "SGLang", "medium null", "lora name", "longer than known"],
)
def test_arrays_of_every_length(fields: list[Any], expected: BlockStored) -> None:
    payload = pack([2.0, [["BlockStored", *fields], ["BlockRemoved", [1]], ["AllBlocksCleared"]]])
    assert decode_batch(payload).events == (expected, BlockRemoved((1,)), AllBlocksCleared())


def test_hashes_are_ints_of_either_sign_or_bytes() -> None:
    hashes = [2**64 - 1, -(2**63), b"\x00" * 32, b""]
    payload = pack([0.0, [{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}]])
    assert decode_batch(payload).events == (BlockRemoved(tuple(hashes)),)


def test_both_forms_in_one_batch() -> None:
    payload = pack([0.0, [["BlockRemoved", [1]], {"type": "BlockRemoved", "block_hashes": [2]}], 3])
    assert decode_batch(payload) == EventBatch(0.0, (BlockRemoved((1,)), BlockRemoved((2,))), 3)


def test_a_batch_as_a_map() -> None:
    payload = pack({"ts": 4.0, "events": [{"type": "AllBlocksCleared"}], "data_parallel_rank": 2, "more": 1})
    assert decode_batch(payload) == EventBatch(4.0, (AllBlocksCleared(),), 2)


def test_unknown_fields_and_types_are_ignored_and_bad_events_cost_only_themselves() -> None:
    events: list[Any] = [
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "colour": "red"},
        {"type": "BlockTransferred", "block_hashes": [1]},
        ["BlockSnapshot", 1, 2],
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 16},  # no parent: unsafe
        {"type": "BlockRemoved", "block_hashes": "1"},
        {"no": "type"},
        [],
        17,
        None,
        ["AllBlocksCleared"],
    ]
    batch = decode_batch(pack([0.0, events, 0, "a fourth element"]))
    assert batch == EventBatch(0.0, (BlockRemoved((1,)), AllBlocksCleared()), 0, malformed=6, ignored=2)


def test_stores_of_sglang_name_salt_and_adapter() -> None:
    """As 0.5.23 writes them: fields at their default left out, its rank third in the batch."""
    event = {
        "type": "BlockStored",
        "block_hashes": [11],
        "parent_block_hash": None,
        "token_ids": list(range(16)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "cache_salt": "tenant-a",
        "session_id": "s-1",
        "lora_name": "sql",
    }
    expected = BlockStored(
        (11,), None, tuple(range(16)), 16, cache_salt="tenant-a", session_id="s-1", lora_name="sql"
    )
    assert decode_batch(pack([0.5, [event], 1])) == EventBatch(0.5, (expected,), 1)


PAIRED = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": None,
    "token_ids": [[token, token + 1] for token in range(32)],
    "block_size": 16,
    "lora_id": None,
    "medium": "GPU",
}
UNPAIRED = BlockStored((11, 12), None, tuple(range(32)), 16, lookahead_token_ids=((16,), (32,)))


def test_tokens_in_pairs_say_what_follows_a_block() -> None:
    """SGLang 0.5.23 with EAGLE: each token comes with the one behind it, the last of a block with the next's
    first."""
    payload = pack([0.5, [PAIRED, {"type": "BlockRemoved", "block_hashes": [11]}], 1])
    assert decode_batch(payload) == EventBatch(0.5, (UNPAIRED, BlockRemoved((11,))), 1)


def test_pairs_beside_what_is_none() -> None:
    bad = {**PAIRED, "token_ids": [[1, 2, 3]]}
    assert decode_batch(pack([0.5, [bad, PAIRED, ["BlockRemoved", [1]]]])) == EventBatch(
        0.5, (UNPAIRED, BlockRemoved((1,))), malformed=1
    )


def test_stores_of_vllm_say_what_follows_a_block() -> None:
    """0.33 with a draft model of EAGLE's kind."""
    event = {
        "type": "BlockStored",
        "block_hashes": [11],
        "parent_block_hash": None,
        "token_ids": list(range(16)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "lookahead_token_ids": [[16]],
    }
    (store,) = decode_batch(pack([0.5, [event], 0])).events
    assert isinstance(store, BlockStored)
    assert (store.token_ids, store.lookahead_token_ids) == (tuple(range(16)), ((16,),))


def test_stores_of_slower_tiers_decode_without_tokens() -> None:
    event = {
        "type": "BlockStored",
        "block_hashes": [77],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 0,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
        "group_idx": 0,
        "locality": "LOCAL",
        "ownership": "disk-0",
    }
    [stored] = decode_batch(pack([0.0, [event]])).events
    assert stored == BlockStored(
        (77,), None, (), 0, medium="CPU", group_idx=0, locality="LOCAL", ownership="disk-0"
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"not msgpack",
        pack(None),
        pack([]),
        pack(["now", []]),
        pack([0.0]),
        pack([0.0, {}]),
        pack({"ts": 0.0}),
        b"\x91" * 200_000,
        b"\x92\x01" + b"\x91" * 200_000,
        pack([0.0, [{"type": "AllBlocksCleared"}]])[:-3],
    ],
)
def test_what_is_no_batch_raises_one_error(payload: bytes) -> None:
    with pytest.raises(EventDecodeError):
        decode_batch(payload)


hashes = st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=40))
names = st.none() | st.text(max_size=8)
extras = st.none() | st.tuples(st.text(max_size=5)) | st.tuples(st.binary(max_size=5), st.integers(0, 99))
stores = st.builds(
    BlockStored,
    block_hashes=st.lists(hashes, max_size=4).map(tuple),
    parent_block_hash=st.none() | hashes,
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=40).map(tuple),
    block_size=st.integers(0, 64),
    lora_id=st.none() | st.integers(0, 9),
    medium=st.none() | st.sampled_from(["GPU", "CPU", "STORAGE"]),
    lora_name=names,
    extra_keys=st.none() | st.lists(extras, max_size=3).map(tuple),
    group_idx=st.none() | st.integers(0, 3),
    kv_cache_spec_kind=names,
    kv_cache_spec_sliding_window=st.none() | st.integers(0, 4096),
    locality=names,
    ownership=names,
    session_id=names,
)
removals = st.builds(
    BlockRemoved,
    block_hashes=st.lists(hashes, max_size=4).map(tuple),
    medium=st.none() | st.sampled_from(["GPU", "CPU"]),
    group_idx=st.none() | st.integers(0, 3),
    locality=names,
    ownership=names,
)
batches = st.builds(
    EventBatch,
    ts=st.floats(0, 2e9),
    events=st.lists(stores | removals | st.just(AllBlocksCleared()), max_size=5).map(tuple),
    dp_rank=st.none() | st.integers(0, 7),
)


@given(batches)
def test_what_is_written_is_read(batch: EventBatch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(batches, st.data())
def test_damage_is_an_error_or_a_count_and_nothing_else(batch: EventBatch, data: st.DataObject) -> None:
    payload = bytearray(encode_batch(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_back = decode_batch(bytes(payload))
    except EventDecodeError:
        return
    again = decode_batch(encode_batch(read_back))
    assert again.events == read_back.events, "what was read is whole"
