"""What K/V in fewer bits costs: next-token distributions against those of float32 K/V.

    python -m benchmarks.kv_precision --model smollm2

The model reads a prompt and then, at every later position, the token that float32 K/V chose: so all kinds see
the same text, and the difference at each position is due to K/V alone. Printed, over those positions: the
largest and the root-mean-square difference of logits, the mean Kullback-Leibler divergence in nats, how often
the most likely token is the same, and the bytes of one token's K/V.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click
import numpy as np

from benchmarks.ending import in_one_line
from gateway.prompt.files import load_tokenizer_files
from workers.model.kv_store import KvDtype
from workers.model.loaded import LoadedModel
from workers.model.resolve import resolve_model
from workers.model.rope import F32
from workers.model.runner import NumpyRunner
from workers.types import SamplingParams, StepItem

TEXT = Path(__file__).parent.parent / "docs" / "architecture.md"
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Precision:
    kind: str
    bytes_per_token: float
    largest: float
    rms: float
    divergence: float
    agreement: float


def forced_logits(runner: NumpyRunner, prompt: list[int], forced: list[int] | None, steps: int) -> F32:
    """Logits at `steps` positions, [steps, vocab]. `forced` are the tokens to feed; None: the likeliest."""
    blocks = list(range(-(-(len(prompt) + steps) // BLOCK)))
    rows: list[F32] = []
    tokens, start = prompt, 0
    for step in range(steps):
        item = StepItem(
            "r",
            tokens=tokens,
            start=start,
            block_table=blocks,
            samples=True,
            sampling=SamplingParams(temperature=0),
        )
        rows.append(runner.logits([item])[0])
        start += len(tokens)
        tokens = [int(rows[-1].argmax()) if forced is None else forced[step]]
    return np.stack(rows)


def compare(exact: F32, near: F32) -> tuple[float, float, float, float]:
    """(largest, root-mean-square difference, mean divergence in nats, share of equal first choices)."""
    difference = near - exact
    p, q = log_softmax(exact), log_softmax(near)
    divergence = float((np.exp(p) * (p - q)).sum(axis=-1).mean())
    agreement = float((exact.argmax(axis=-1) == near.argmax(axis=-1)).mean())
    return float(np.abs(difference).max()), float(np.sqrt((difference**2).mean())), divergence, agreement


def log_softmax(logits: F32) -> F32:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: F32 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def measure(model: LoadedModel, prompt: list[int], steps: int) -> tuple[list[Precision], float]:
    """One row for each kind, and the standard deviation of float32's logits, to set differences against."""
    blocks = -(-(len(prompt) + steps) // BLOCK)

    def runner(kind: KvDtype) -> NumpyRunner:
        return NumpyRunner(model, num_blocks=blocks, block_size=BLOCK, kv_dtype=kind)

    exact = forced_logits(runner("float32"), prompt, None, steps)
    forced = [int(token) for token in exact.argmax(axis=-1)]
    rows: list[Precision] = []
    for kind in get_args(KvDtype):
        one = runner(kind)
        near = forced_logits(one, prompt, forced, steps)
        rows.append(Precision(kind, one.kv.nbytes / (blocks * BLOCK), *compare(exact, near)))
    return rows, float(exact.std())


@click.command()
@click.option("--model", default="smollm2", show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=64, show_default=True)
@in_one_line()
def main(model: str, prompt_tokens: int, steps: int) -> None:
    loaded = resolve_model(model)
    tokenizer = load_tokenizer_files(loaded.tokenizer_source).tokenizer
    prompt = tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids[:prompt_tokens]
    rows, spread = measure(loaded, prompt, steps)
    click.echo(
        f"{loaded.name}: {len(prompt)} prompt tokens, {steps} positions; logits spread by {spread:.2f}"
    )
    click.echo(
        "| K/V | bytes a token | largest difference | RMS difference | divergence, nats | same choice |"
    )
    click.echo("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        click.echo(
            f"| {row.kind} | {row.bytes_per_token:,.0f} | {row.largest:.3f} | {row.rms:.4f} "
            f"| {row.divergence:.1e} | {row.agreement:.1%} |"
        )


if __name__ == "__main__":
    main()
