"""A plan as tables for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.planning.result import Plan

GIB = 2**30


def render(plan: Plan, console: Console) -> None:
    _heading(plan, console)
    console.print(_memory(plan))
    console.print(
        f"{plan.kv_blocks:,} blocks, {plan.kv_tokens:,} tokens a replica;"
        f" {plan.concurrency_at_max_model_len:.2f} sequences of {plan.max_model_len:,} at once",
        highlight=False,
    )
    if len(plan.groups) > 1:
        console.print(_groups(plan))
    console.print(_lengths(plan))
    console.print(_precisions(plan))
    console.print(_savings(plan))
    console.print(_latency(plan))
    console.print(_advice(plan))
    for warning in plan.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False)
    for note in plan.notes:
        console.print(f"note: {escape(note)}", highlight=False)
    _flags(plan, console)


def _heading(plan: Plan, console: Console) -> None:
    model, gpu = plan.model, plan.gpu
    shared = "one latent vector" if model.attention == "MLA" else f"{model.kv_heads} K/V heads"
    console.print(
        f"[bold]{escape(model.name)}[/]: {model.layers} layers, {model.attention} ({model.heads} query heads,"
        f" {shared}), {model.parameters / 1e9:.2f} B parameters in {model.weights}",
        highlight=False,
    )
    console.print(
        f"[bold]{escape(gpu.name)}[/] × {gpu.gpus}: {gpu.replicas} replica(s) of {gpu.tensor_parallel},"
        f" {gpu.memory_bytes / GIB:.2f} GiB, {gpu.bandwidth / 1e9:,.0f} GB/s, {gpu.flops / 1e12:,.0f} TFLOP/s"
        " each",
        highlight=False,
    )
    ways = ", ".join(
        f"{row.kind} {row.kv_bytes_per_token:,} B{'' if row.own else f' ({row.times_own:.3g}×)'}"
        for row in plan.attention
    )
    console.print(
        f"K/V in {plan.kv_precision}: [bold]{plan.kv_bytes_per_token:,} B[/] a token,"
        f" {plan.kv_bytes_per_block:,} B a block of {plan.block_size}; by way of sharing heads: {ways}",
        highlight=False,
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _memory(plan: Plan) -> Table:
    table = _table("Memory of each GPU", "", "GiB")
    memory = plan.memory
    for name, value in (
        ("total", memory.total),
        (f"usable ({plan.gpu_memory_utilization:.0%})", memory.usable),
        (f"weights ({plan.model.weights})", memory.weights),
        ("activations (estimate)", memory.activations),
        ("runtime (estimate)", memory.runtime),
        ("left for K/V", memory.kv),
    ):
        table.add_row(name, f"{value / GIB:.2f}")
    return table


def _groups(plan: Plan) -> Table:
    """The chosen way is marked."""
    table = _table(
        f"Ways to share {plan.gpu.gpus} GPUs",
        *("GPUs a replica", "replicas", "at once, each", "wanted", "first token, warm", "between tokens"),
        "",
    )
    for row in plan.groups:
        chosen = "→ " if row.tensor_parallel == plan.gpu.tensor_parallel else ""
        if not row.fits:
            table.add_row(f"{chosen}{row.tensor_parallel}", str(row.replicas), *[""] * 4, "does not fit")
            continue
        table.add_row(
            f"{chosen}{row.tensor_parallel}",
            str(row.replicas),
            f"{row.sequences:,}",
            f"{row.wanted:,}",
            f"{row.ttft_warm * 1e3:,.0f} ms",
            f"{row.itl_loaded * 1e3:,.1f} ms",
            "meets it" if row.meets else "",
        )
    return table


def _lengths(plan: Plan) -> Table:
    table = _table("Sequences by length", "tokens", "K/V of one, GiB", "blocks", "at once a replica")
    for row in plan.lengths:
        at_once = f"{row.sequences:.2f}" if row.sequences >= 1 else "does not fit"
        if not row.known:
            at_once = f"the model knows {plan.model.max_positions:,}"
        table.add_row(f"{row.tokens:,}", f"{row.kv_bytes / GIB:.3f}", f"{row.blocks:,}", at_once)
    return table


def _precisions(plan: Plan) -> Table:
    table = _table("K/V precision", "", "B a token", "tokens", "mean sequences at once")
    for row in plan.precisions:
        table.add_row(
            row.precision, f"{row.kv_bytes_per_token:,}", f"{row.kv_tokens:,}", f"{row.sequences:,}"
        )
    return table


def _savings(plan: Plan) -> Table:
    table = _table("What paging and a shared prefix save", "", "")
    reserved, prefix = plan.reservation, plan.prefix
    table.add_row(
        f"{reserved.requests} requests of {reserved.used:,} tokens, each reserving {reserved.reserved:,}",
        f"{reserved.wasted_share:.1%} wasted",
    )
    table.add_row(f"in blocks: {reserved.paged_blocks:,} each", f"{reserved.paged_wasted_share:.1%} wasted")
    table.add_row(
        f"prefix of {prefix.tokens:,} cached tokens, {prefix.sequences} sequences: memory of each GPU",
        f"{prefix.memory_bytes / GIB:.2f} GiB",
    )
    table.add_row(
        "… prefill of a mean prompt", f"{prefix.prefill_share:.0%}, {prefix.prefill_seconds * 1e3:,.0f} ms"
    )
    return table


def _latency(plan: Plan) -> Table:
    times = plan.latency
    table = _table(
        f"Times, without queueing (estimate: {times.compute_efficiency:.0%} of the arithmetic peak,"
        f" {times.bandwidth_efficiency:.0%} of the bandwidth)",
        "",
        "at the peaks",
        "estimate",
    )
    rows: list[tuple[str, float | None, float]] = [
        (f"first token, {plan.workload.input_mean:,} in, cold", times.ttft_cold_bound, times.ttft_cold),
        (f"… warm ({plan.prefix.tokens:,} cached)", times.ttft_warm_bound, times.ttft_warm),
        (f"… cold, longest ({plan.workload.input_longest:,})", None, times.ttft_longest),
        ("between tokens, alone", times.itl_bound, times.itl),
        (f"… {times.loaded_sequences} at once", None, times.itl_loaded),
    ]
    for name, bound, estimate in rows:
        table.add_row(name, "" if bound is None else f"{bound * 1e3:,.1f} ms", f"{estimate * 1e3:,.1f} ms")
    return table


def _advice(plan: Plan) -> Table:
    table = Table(title=f"Advice for {plan.workload.title}", title_justify="left", title_style="bold")
    for column in ("set", "to", "because"):
        table.add_column(column)
    for item in plan.advice:
        table.add_row(item.what, item.value, escape(item.reason))
    return table


def _flags(plan: Plan, console: Console) -> None:
    """Plain lines, unwrapped: they are there to be copied."""
    for title, lines in (("vLLM", plan.flags.vllm), ("SGLang", plan.flags.sglang)):
        console.print(f"\n[bold]{title}[/]")
        console.out(" \\\n".join(f"  {line}" for line in lines), highlight=False)
    for title, values in (("vLLM", plan.flags.values), ("SGLang", plan.flags.sglang_values)):
        console.print(f"\n[bold]Chart values, {title}[/]")
        console.out(values, highlight=False)
