"""Loaders of published trace formats. Sources and licences of our files: benchmarks/traces/README.md.

mooncake  one request a line: `timestamp` ms, `input_length`, `output_length`, `hash_ids` of 512 tokens
agentic   one coding session a line: `requests` with `t` s, `in`, `out`, `hash_ids` of 64 tokens
bailian   one request a line: `timestamp` s, `chat_id`, `parent_chat_id`, `hash_ids` of 16 tokens
csv       columns arrival_s, input_tokens, output_tokens, block_ids (split by spaces), session; 16 tokens
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from benchmarks.replay.fields import Row, json_rows, numbered, some
from benchmarks.replay.trace import Names, Trace, TraceRequest, ordered

COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "block_ids")
"""Of a CSV; `session` may be missing."""
LONGEST_PAUSE_S = 60.0
"""Breaks of people (a night's sleep) are cut to this, so that a session's load stays a session's."""
TICK_S = 3.0
"""Mooncake's timestamps stand on ticks of 3 s; arrivals are spread evenly over them."""


MOST_COPIED = 200_000
"""Requests of all copies of a trace's sessions: each takes some 25 KB of memory."""


class TooLarge(ValueError):
    """No fault of the file's."""


def load(path: Path, kind: str, *, copies: int = 1, seed: int = 0) -> Trace:
    """`copies` plays so many independent sets of sessions at once, where the format has sessions that can be
    told apart (agentic). Raises ValueError for an unknown format and for a file that is not of it, is damaged
    or has no requests; it says which line to mend."""
    if kind not in FORMATS:
        raise ValueError(f"unknown trace format {kind!r}; there are {', '.join(FORMATS)}")
    if copies != 1 and kind != "agentic":
        raise ValueError(f"{path}: its requests cannot be told apart by session, so it cannot be multiplied")
    opener = gzip.open if path.suffix == ".gz" else open
    # a spreadsheet's CSV begins with a mark that is none of its first column's name
    with opener(path, "rt", encoding="utf-8-sig") as lines:
        try:
            trace = FORMATS[kind](path.name.split(".")[0], lines, copies, seed)
        except TooLarge as error:
            raise ValueError(f"--copies: {error}") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is damaged, or only a part of its .gz: {error}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is no text in UTF-8; a compressed file is to end in .gz") from None
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path} is no {kind} trace: {error}") from None
    if not trace.requests:
        raise ValueError(f"{path} has no requests")
    return trace


def mooncake(name: str, lines: Iterable[str], copies: int, seed: int) -> Trace:
    unit = 512
    rows = list(json_rows(lines))
    in_tick: dict[float, int] = {}
    for row in rows:
        tick = row.number("timestamp")
        in_tick[tick] = in_tick.get(tick, 0) + 1
    seen: dict[float, int] = {}
    requests: list[TraceRequest] = []
    told: dict[int, int] = {}
    for number, row in enumerate(rows):
        tick = row.number("timestamp")
        seen[tick] = seen.get(tick, 0) + 1
        tokens = row.count("input_length", 1)
        ids = numbered(some(row.names("hash_ids", tokens, unit), "hash_ids", row.where), row.where)
        full = tokens // unit
        # block 0 is everybody's; a prompt that goes on where another ended is that one's next turn
        parent = next((told[block] for block in reversed(ids[1:]) if block in told), None)
        requests.append(
            TraceRequest(
                arrival=tick / 1e3 + TICK_S * (seen[tick] - 1) / in_tick[tick],
                input_tokens=tokens,
                output_tokens=max(1, row.count("output_length", 0)),
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
    sessions = [_session(row, unit) for row in json_rows(lines)]
    count = sum(len(session["requests"]) for session in sessions)
    if copies > 1 and copies * count > MOST_COPIED:
        raise TooLarge(
            f"{copies:,} of {count:,} requests are {copies * count:,}, {MOST_COPIED:,} are the most: "
            "each takes some 25 KB of memory, in every process of --jobs"
        )
    names = Names()
    random = Random(seed)
    plans = [(copy, session, _session_times(session)) for copy in range(copies) for session in sessions]
    random.shuffle(plans)
    window = max((times[-1] for _copy, _session, times in plans), default=0.0)
    requests: list[TraceRequest] = []
    for place, (copy, session, times) in enumerate(plans):
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
    names = Names()
    requests: list[TraceRequest] = []
    asked: dict[str, int] = {}
    first: float | None = None
    for row in json_rows(lines):
        at, tokens, own = row.number("timestamp"), row.count("input_length", 1), str(row.get("chat_id"))
        first = at if first is None else first
        parent = asked.get(str(row.get("parent_chat_id")))
        requests.append(
            TraceRequest(
                arrival=at - first,
                input_tokens=tokens,
                output_tokens=max(1, row.count("output_length", 0)),
                ids=names.path(some(row.names("hash_ids", tokens, 16), "hash_ids", row.where)),
                parent=parent,
                session=own if parent is None else requests[parent].session,
            )
        )
        asked[own] = len(requests) - 1
    return ordered(name, 16, requests)


def plain_csv(name: str, lines: Iterable[str], copies: int, seed: int) -> Trace:
    names = Names()
    requests: list[TraceRequest] = []
    latest: dict[str, int] = {}
    table = csv.DictReader(lines)
    columns = table.fieldnames or ()
    if missing := [column for column in COLUMNS if column not in columns]:
        raise ValueError(f"its first line has no column {', '.join(missing)}")
    for fields in table:
        row = Row(fields, f"line {table.line_num}")
        session = fields.get("session") or ""
        tokens = row.count("input_tokens", 1)
        requests.append(
            TraceRequest(
                arrival=row.number("arrival_s"),
                input_tokens=tokens,
                output_tokens=max(1, row.count("output_tokens", 0)),
                ids=names.path(some(row.names("block_ids", tokens, 16), "block_ids", row.where)),
                parent=latest.get(session) if session else None,
                session=session,
            )
        )
        latest[session] = len(requests) - 1
    return ordered(name, 16, requests)


FORMATS: Mapping[str, Callable[[str, Iterable[str], int, int], Trace]] = MappingProxyType(
    {"mooncake": mooncake, "agentic": agentic, "bailian": bailian, "csv": plain_csv}
)


def _session(row: Row, unit: int) -> dict[str, Any]:
    """All that is read of it, checked. Raises ValueError."""
    row.get("id")
    if row.count("block_size", 1) != unit:
        raise ValueError(f"{row.where}: blocks of {row.get('block_size')} tokens, {unit} were expected")
    row.count("tool_tokens", 0)
    row.count("system_tokens", 0)
    for request in row.rows("requests", "requests"):
        request.number("t")
        request.number("api_time", 0.0)
        request.count("out", 0)
        request.names("hash_ids", request.count("in", 1), unit)
    return dict(row.fields)


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
