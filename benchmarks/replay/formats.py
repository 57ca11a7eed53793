"""Loaders of published trace formats. Sources and licences of our files: benchmarks/traces/README.md.

mooncake  one request a line: `timestamp` ms, `input_length`, `output_length`, `hash_ids` of 512 tokens
agentic   one coding session a line: `requests` with `t` s, `in`, `out`, `hash_ids` of 64 tokens
bailian   one request a line: `timestamp` s, `chat_id`, `parent_chat_id`, `hash_ids` of 16 tokens
csv       columns arrival_s, input_tokens, output_tokens, block_ids (split by spaces), session; 16 tokens
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from benchmarks.replay.trace import Names, Trace, TraceRequest, ordered

LONGEST_PAUSE_S = 60.0
"""Breaks of people (a night's sleep) are cut to this, so that a session's load stays a session's."""
TICK_S = 3.0
"""Mooncake's timestamps stand on ticks of 3 s; arrivals are spread evenly over them."""


def load(path: Path, kind: str, *, copies: int = 1, seed: int = 0) -> Trace:
    """`copies` plays so many independent sets of sessions at once, where the format has sessions that can be
    told apart (agentic). Raises ValueError for an unknown format and for a file that is not of it."""
    if kind not in FORMATS:
        raise ValueError(f"unknown trace format {kind!r}; there are {', '.join(FORMATS)}")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        try:
            return FORMATS[kind](path.name.split(".")[0], lines, copies, seed)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is no {kind} trace: {error!r}") from None


def mooncake(name: str, lines: Iterable[str], copies: int, seed: int) -> Trace:
    unit = 512
    _only_one(name, copies)
    rows = [json.loads(line) for line in lines]
    in_tick: dict[float, int] = {}
    for row in rows:
        in_tick[row["timestamp"]] = in_tick.get(row["timestamp"], 0) + 1
    seen: dict[float, int] = {}
    requests: list[TraceRequest] = []
    told: dict[int, int] = {}
    for number, row in enumerate(rows):
        tick = row["timestamp"]
        seen[tick] = seen.get(tick, 0) + 1
        ids = tuple(row["hash_ids"])
        full = row["input_length"] // unit
        # block 0 is everybody's; a prompt that goes on where another ended is that one's next turn
        parent = next((told[block] for block in reversed(ids[1:]) if block in told), None)
        requests.append(
            TraceRequest(
                arrival=tick / 1e3 + TICK_S * (seen[tick] - 1) / in_tick[tick],
                input_tokens=row["input_length"],
                output_tokens=max(1, row["output_length"]),
                ids=ids,
                parent=parent,
                session=str(ids[1] if full > 1 else f"short-{number}"),
            )
        )
        if full > 1:
            told[ids[full - 1]] = number
    return ordered(name, unit, requests)


def agentic(name: str, lines: Iterable[str], copies: int, seed: int) -> Trace:
    """Sessions begin evenly spread over the longest one's length. Tools, then system prompt, begin every
    prompt and are common to all sessions that have as many tokens of them; all else is a session's own."""
    unit = 64
    sessions = [json.loads(line) for line in lines]
    names = Names()
    random = Random(seed)
    plans = [(copy, session, _session_times(session)) for copy in range(copies) for session in sessions]
    random.shuffle(plans)
    window = max(times[-1] for _copy, _session, times in plans)
    requests: list[TraceRequest] = []
    for place, (copy, session, times) in enumerate(plans):
        if session["block_size"] != unit:
            raise ValueError(f"{name}: blocks of {session['block_size']} tokens, {unit} were expected")
        begin = window * place / len(plans)
        label = f"{session['id']}/{copy}"
        parent: int | None = None
        for number, (row, at) in enumerate(zip(session["requests"], times, strict=True)):
            requests.append(
                TraceRequest(
                    arrival=begin + at,
                    input_tokens=row["in"],
                    output_tokens=max(1, row["out"]),
                    ids=names.path(_labels(session, row, label, number)),
                    parent=parent,
                    think_s=_pause(session["requests"], number),
                    session=label,
                )
            )
            parent = len(requests) - 1
    return ordered(name, unit, requests)


def bailian(name: str, lines: Iterable[str], copies: int, seed: int) -> Trace:
    _only_one(name, copies)
    names = Names()
    requests: list[TraceRequest] = []
    asked: dict[Any, int] = {}
    first: float | None = None
    for line in lines:
        row = json.loads(line)
        first = row["timestamp"] if first is None else first
        parent = asked.get(row["parent_chat_id"])
        requests.append(
            TraceRequest(
                arrival=row["timestamp"] - first,
                input_tokens=row["input_length"],
                output_tokens=max(1, row["output_length"]),
                ids=names.path(row["hash_ids"]),
                parent=parent,
                session=str(row["chat_id"] if parent is None else requests[parent].session),
            )
        )
        asked[row["chat_id"]] = len(requests) - 1
    return ordered(name, 16, requests)


def plain_csv(name: str, lines: Iterable[str], copies: int, seed: int) -> Trace:
    _only_one(name, copies)
    names = Names()
    requests: list[TraceRequest] = []
    latest: dict[str, int] = {}
    for row in csv.DictReader(lines):
        session = row.get("session") or ""
        requests.append(
            TraceRequest(
                arrival=float(row["arrival_s"]),
                input_tokens=int(row["input_tokens"]),
                output_tokens=max(1, int(row["output_tokens"])),
                ids=names.path(row["block_ids"].split()),
                parent=latest.get(session) if session else None,
                session=session,
            )
        )
        latest[session] = len(requests) - 1
    return ordered(name, 16, requests)


FORMATS: Mapping[str, Callable[[str, Iterable[str], int, int], Trace]] = MappingProxyType(
    {"mooncake": mooncake, "agentic": agentic, "bailian": bailian, "csv": plain_csv}
)


def _only_one(name: str, copies: int) -> None:
    if copies != 1:
        raise ValueError(f"{name}: its requests cannot be told apart by session, so it cannot be multiplied")


def _pause(rows: list[dict[str, Any]], number: int) -> float:
    """Seconds between the last answer and this request, long ones cut."""
    if not number:
        return 0.0
    before = rows[number - 1]
    gap = rows[number]["t"] - before["t"] - before.get("api_time", 0.0)
    return min(LONGEST_PAUSE_S, max(0.0, float(gap)))


def _session_times(session: dict[str, Any]) -> list[float]:
    times: list[float] = []
    now = 0.0
    rows = session["requests"]
    for number in range(len(rows)):
        if number:
            now += rows[number - 1].get("api_time", 0.0) + _pause(rows, number)
        times.append(now)
    return times


def _labels(session: dict[str, Any], row: dict[str, Any], label: str, number: int) -> Iterator[object]:
    tools = session["tool_tokens"] // 64
    common = (session["tool_tokens"] + session["system_tokens"]) // 64
    for place, block in enumerate(row["hash_ids"]):
        if place < tools:
            yield session["tool_tokens"], place
        elif place < common:
            yield session["tool_tokens"], session["system_tokens"], place
        else:
            yield label, block
    if row["in"] > len(row["hash_ids"]) * 64:
        yield label, "tail", number
