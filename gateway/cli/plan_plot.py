"""A plan as a picture. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

from pathlib import Path

from gateway.errors import ConfigError, MissingExtra
from gateway.planning.result import Plan

GIB = 2**30


def draw(plan: Plan, path: Path) -> None:
    """Three panels: where memory goes, K/V by length, sequences at once by length. Raises ConfigError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("drawing", "plots") from error
    figure = Figure(figsize=(12, 4), layout="constrained")
    memory, size, sequences = figure.subplots(1, 3)
    model, gpu = plan.model, plan.gpu
    figure.suptitle(
        f"{model.name} ({model.weights}), K/V {plan.kv_precision}, {gpu.name} × {gpu.tensor_parallel}"
    )

    bottom = 0.0
    parts = (
        ("weights", plan.memory.weights),
        ("activations", plan.memory.activations),
        ("runtime", plan.memory.runtime),
        ("K/V", plan.memory.kv),
        ("left to others", plan.memory.total - plan.memory.usable),
    )
    for name, value in parts:
        memory.bar(["memory"], [value / GIB], bottom=bottom, label=f"{name} {value / GIB:.1f}")
        bottom += value / GIB
    memory.set(ylabel="GiB a GPU", title="memory")
    memory.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")

    tokens = [row.tokens for row in plan.lengths]
    size.plot(tokens, [row.kv_bytes / GIB for row in plan.lengths], marker="o")
    size.set(xscale="log", yscale="log", xlabel="tokens", ylabel="GiB", title="K/V of one sequence")
    sequences.plot(tokens, [row.sequences for row in plan.lengths], marker="o")
    sequences.axhline(1, linestyle=":", color="grey")
    sequences.axvline(plan.max_model_len, linestyle="--", color="grey")
    sequences.set(xscale="log", yscale="log", xlabel="tokens", ylabel="sequences", title="at once, a replica")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot draw into {path}: {error}") from error
