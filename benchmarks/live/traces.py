"""A published trace, scaled down to text: one token stands for `SCALE` of the trace's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.plan import Plan, Turn
from benchmarks.live.words import Words
from benchmarks.replay import formats
from benchmarks.replay.trace import Trace, shortened

SCALE = 16
LONGEST = 131_072
TRACES = Path("benchmarks/traces")


@dataclass(frozen=True, slots=True)
class TraceShape:
    file: str
    kind: str
    requests: int
    rate: float
    blocks: int
    """A worker's, of 16 tokens that stand for 256."""


MOONCAKE = TraceShape("mooncake_conversation_trace.jsonl.gz", "mooncake", 900, 4.0, 3_400)
AGENTIC = TraceShape("agentic_sessions.jsonl.gz", "agentic", 600, 3.0, 1_700)
PROFILE = "560us-per-token,9ms-per-step,max_num_batched_tokens=512"
"""An H100 with an 8B model computes a prompt token in about 35 µs; here each stands for 16. Answers are a
sixteenth as long, a step of them takes what it takes."""


def replayed(shape: TraceShape, words: Words, seed: int, folder: Path = TRACES) -> Plan:
    trace = formats.load(folder / shape.file, shape.kind, seed=seed)
    trace = shortened(trace, limit=shape.requests, longest=LONGEST)
    pace = trace.rate / shape.rate
    turns = tuple(
        Turn(
            at=request.arrival * pace,
            text=_prompt(trace, number, words, seed),
            answer_tokens=max(1, request.output_tokens // SCALE),
            session=request.session,
            after=request.parent,
            think_s=request.think_s * pace,
        )
        for number, request in enumerate(trace.requests)
    )
    about = f"{trace.name}, first {len(turns)} requests at {shape.rate:g}/s, 1 token for {SCALE}"
    return Plan(shape.kind, turns, PROFILE, shape.blocks, 5.0, about)


def _prompt(trace: Trace, number: int, words: Words, seed: int) -> str:
    """Blocks of equal names are equal text, so equal prefixes stay equal. At least one word."""
    request = trace.requests[number]
    left = max(1, request.input_tokens // SCALE)
    parts: list[str] = []
    for name in request.ids:
        if left <= 0:
            break
        size = trace.unit // SCALE
        text = words.text(f"{seed}/{trace.name}/{name}", size)
        parts.append(text if left >= size else " ".join(text.split()[:left]))
        left -= size
    return " ".join(parts)
