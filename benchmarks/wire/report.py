"""The run as tables: for people, and for the pages that tell of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.ratios import NOT_MEASURABLE, ratio
from benchmarks.replay.page import write_between
from benchmarks.wire.dynamo import FASTOKENS, NAME

ROOT = Path(__file__).resolve().parents[2]
Rows = Mapping[str, Mapping[str, float]]
OURS, BYTES = "ours, tokenising", "ours, bytes"
DYNAMO = (NAME, FASTOKENS)
"""Have engines of their own."""
KEYS, EVENTS = "ours, keys and access log", "ours, a million blocks, events"


def median_rows(rounds: Sequence[Rows]) -> dict[str, dict[str, float]]:
    """Of what was measured in every round."""
    common = [name for name in rounds[0] if all(name in other for other in rounds)]
    return {
        name: {
            key: statistics.median(r[name][key] for r in rounds)
            for key in rounds[0][name]
            if all(key in other[name] for other in rounds)
        }
        for name in common
    }


def table(rows: Rows) -> str:
    """Every router; times are what it adds to those of an engine asked directly, but for one that has engines
    of its own: these are in them."""
    head = ["router", "CPU µs, JSON 200", "JSON 8,000", "a chunk", "added p50 / p99 ms, JSON 200"]
    head += ["first byte 200", "first byte 8,000", "the same, half load", "answers/s"]
    head += ["each on a new connection", "resting"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for name, row in rows.items():
        if name == "direct":
            continue
        cells = (
            name,
            _cell(row, "cpu_us_json_200", ".0f"),
            _cell(row, "cpu_us_json_8000", ".0f"),
            _cell(row, "cpu_us_chunk", ".1f"),
            *(_added(rows, name, key) for key in ("json_200", "stream_200", "stream_8000", "half_8000")),
            _cell(row, "per_second", ".0f"),
            _cell(row, "fresh_per_second", ".0f"),
            f"{100 * row['idle']:.1f} %",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def targets(rows: Rows) -> str:
    """What we set ourselves, against the peers of the same run, as far as they were there. A peer's figure
    that is lost in noise decides nothing: neither kept nor missed."""
    own = rows[BYTES]
    lines = ["| | target | reached | |", "|---|---|---|---|"]

    def line(what: str, target: str, reached: float | None, limit: float, unit: str) -> None:
        if reached is None or isnan(reached):
            lines.append(f"| {what} | {target} | {NOT_MEASURABLE} | |")
            return
        kept = "kept" if reached <= limit else "**missed**"
        lines.append(f"| {what} | {target} | {reached:.2f} {unit} | {kept} |")

    if peer := rows.get("sglang-router"):
        reached = ratio(own["cpu_us_json_200"], peer["cpu_us_json_200"])
        line("CPU a JSON request", "0.85 × sglang-router", reached, 0.85, "×")
        reached = ratio(own["cpu_us_chunk"], peer["cpu_us_chunk"])
        line("CPU a paced chunk", "1.0 × sglang-router", reached, 1.0, "×")
    if nginx := rows.get("nginx"):
        reached = ratio(own["cpu_us_json_200"], nginx["cpu_us_json_200"])
        line("CPU a JSON request", "2.5 × nginx (aim)", reached, 2.5, "×")
        reached = ratio(own["cpu_us_chunk"], nginx["cpu_us_chunk"])
        line("CPU a paced chunk", "1.3 × nginx (aim)", reached, 1.3, "×")
    if "smg" in rows:
        reached = ratio(_ms(rows, BYTES, "p50", "stream_200"), _ms(rows, "smg", "p50", "stream_200"))
        line("added p50 of the first byte", "0.9 × SMG", reached, 0.9, "×")
    if OURS in rows:
        added = _ms(rows, OURS, "p99", "half_8000")
        line("added p99 of the first byte, half load, 8,000 tokens, tokenising", "5 ms", added, 5.0, "ms")
    half = "p99_ms_half_8000"
    theirs = [rows[name][half] for name in DYNAMO if half in rows.get(name, {})]
    if OURS in rows and theirs:
        reached = ratio(rows[OURS][half], min(theirs))
        line("that p99, the engines' own time in both", "0.25 × Dynamo's better one", reached, 0.25, "×")
    if OURS in rows and EVENTS in rows:
        more = rows[EVENTS][half] - rows[OURS][half]
        line("what events add to that p99, at half load", "2 ms", more, 2.0, "ms")
    return "\n".join(lines)


def machine(told: Mapping[str, Any]) -> str:
    """What it was measured on, in a sentence or two."""
    return fill(
        f"{told['date']}: {told['cores']} cores ({told['cpu']}); our gateway on Python "
        f"{told['gateway_python']}; medians of {told['rounds']} rounds of {told['seconds']:g} s a figure; "
        f"an engine asked directly answers {told['ceiling']:.0f} times a second. "
        f"Load average {told['load_before']:.1f} before, {told['load_after']:.1f} at the end.",
        width=115,
    )


def sizing(rows: Rows) -> str:
    """For whoever plans a fleet's gateways: CPU of one core."""
    own = rows[OURS]
    log = rows[KEYS]["cpu_us_json_200"] - own["cpu_us_json_200"] if KEYS in rows else None
    lines = [
        "| what it costs the gateway | CPU, of one core |",
        "|---|--:|",
        f"| a request of some 200 prompt tokens, tokenising included | {_request(own, 200):.2f} ms |",
        f"| the same with 8,000 prompt tokens, new text in each | {_request(own, 8000):.1f} ms |",
    ]
    if log is not None:
        lines.append(f"| an API key and an access log line | {max(0.0, log) / 1e3:.2f} ms |")
    lines += [
        f"| a chunk of a stream | {own['cpu_us_chunk'] / 1e3:.3f} ms |",
        f"| resting, with four workers | {100 * own['idle']:.1f} % |",
    ]
    if EVENTS in rows:
        lines.append(f"| resting, 10,000 new blocks a second | {100 * rows[EVENTS]['idle']:.0f} % |")
    return "\n".join(lines)


def write_pages(document: Mapping[str, Any], root: Path = ROOT) -> None:
    rows = document["rows"]
    texts = {"wire": table(rows), "wire-machine": machine(document["machine"])}
    if BYTES in rows:
        texts["wire-targets"] = targets(rows)
    write_between(root / "docs" / "performance.md", texts)
    if OURS in rows:
        write_between(root / "docs" / "operations.md", {"wire-sizing": sizing(rows)})


def _request(row: Mapping[str, float], tokens: int) -> float:
    return row[f"cpu_us_json_{tokens}"] / 1e3


def _ms(rows: Rows, name: str, quantile: str, key: str) -> float:
    return rows[name][f"{quantile}_ms_{key}"] - rows["direct"][f"{quantile}_ms_{key}"]


def _added(rows: Rows, name: str, key: str) -> str:
    if f"p50_ms_{key}" not in rows[name]:
        return "–"
    if name in DYNAMO:
        return "{:.2f} / {:.2f} whole".format(*(rows[name][f"{q}_ms_{key}"] for q in ("p50", "p99")))
    return " / ".join(f"{_ms(rows, name, quantile, key):.2f}" for quantile in ("p50", "p99"))


def _cell(row: Mapping[str, float], key: str, form: str) -> str:
    return format(row[key], form) if key in row else "–"
