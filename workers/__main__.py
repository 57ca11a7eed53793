"""`python -m workers serve`: one reference engine, or its simulated twin, behind vLLM's HTTP API."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from workers.backend import Backend
    from workers.serve import ServeOptions

_KV_DTYPES = ("float32", "float16", "int8", "fp8")
# BLAS libraries read their thread count when they are loaded, and never again
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def _parent(_context: click.Context, _param: click.Parameter, wanted: bool) -> int | None:
    """Now, for it may have ended when a model is loaded."""
    return os.getppid() if wanted else None


@click.group()
def main() -> None:
    """The reference engine: paged K/V, prefix cache and KV events, served as vLLM serves them."""


@main.command()
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="smollm2, tiny, tiny-qwen2, a Hugging Face folder, a .gguf file, or sim:<profile>.",
)
@click.option(
    "--served-model-name",
    "served_names",
    multiple=True,
    metavar="NAME",
    help="Name to serve under; repeat for aliases, the first one is the model's.",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME",
    help="Also serve NAME as an adapter: it shares no cached block; the weights are the base's.",
)
@click.option("--tokenizer", metavar="NAME|PATH", help="Take the tokenizer of another model.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", default=8101, show_default=True, type=click.IntRange(0, 65535), help="0: any free one."
)
@click.option("--kv-events-port", type=click.IntRange(1, 65535), help="Publish KV events here; default: not.")
@click.option("--kv-replay-port", type=click.IntRange(1, 65535), help="Default: events port + 1.")
@click.option("--kv-events-topic", default="kv-events", show_default=True)
@click.option("--block-size", type=click.IntRange(1, 1024), help="Tokens a K/V block.  [default: 16]")
@click.option("--num-blocks", type=click.IntRange(1), help="K/V blocks.  [default: 512, or the profile's]")
@click.option("--max-model-len", type=click.IntRange(1), help="Tokens of the longest sequence.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences that run at once.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Tokens of one step.")
@click.option(
    "--long-prefill-token-threshold",
    type=click.IntRange(0),
    help="Most tokens of a step for one of several sequences, so that short prompts pass.  [default: 0, all]",
)
@click.option("--kv-dtype", type=click.Choice(_KV_DTYPES), help="How K and V are kept.  [default: float32]")
@click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True)
@click.option(
    "--prompt-tokens-details/--no-prompt-tokens-details",
    "report_cached",
    default=True,
    show_default=True,
    help="Report cached tokens in `usage`.",
)
@click.option("--seed", type=int, help="Makes sampling without a seed repeatable.")
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Simulated engines: 0.1 is ten times as fast, 0 takes no time.",
)
@click.option(
    "--mean-output-tokens",
    type=click.FloatRange(1),
    help="Simulated engines: end answers by themselves, after this many tokens on average.",
)
@click.option(
    "--threads", type=click.IntRange(1), help="CPU threads of the arithmetic.  [default: half the cores]"
)
@click.option(
    "--shutdown-timeout",
    "shutdown_seconds",
    default=5,
    show_default=True,
    type=click.IntRange(0),
    help="Seconds that running answers get when the engine is told to end.",
)
@click.option(
    "--exit-with-parent",
    "parent",
    is_flag=True,
    callback=_parent,
    help="End when the process that started this one ends.",
)
def serve(
    model: str,
    tokenizer: str | None,
    seed: int | None,
    time_scale: float,
    mean_output_tokens: float | None,
    threads: int | None,
    **given: Any,
) -> None:
    """Serve MODEL over HTTP.

    \b
    python -m workers serve --model smollm2 --port 8101 --kv-events-port 5557
    python -m workers serve --model sim:h100-8b --time-scale 0.1
    """  # fmt: skip
    _set_threads(1 if model.startswith("sim:") else threads)
    try:
        backend = _load(model, tokenizer, seed, time_scale, mean_output_tokens, given)
        _run(backend, _options(backend, given))
    except _operator_errors() as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def _set_threads(threads: int | None) -> None:
    """An operator's own variables stand, unless --threads overrules them."""
    if threads is not None:
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
        return
    # BLAS threads spin while they wait for each other: where cores are short, two are slower than one
    spare = max(1, (os.cpu_count() or 1) // 2)
    for name in _THREAD_VARIABLES:
        os.environ.setdefault(name, str(spare))


def _load(
    model: str,
    tokenizer: str | None,
    seed: int | None,
    time_scale: float,
    mean_output_tokens: float | None,
    given: dict[str, Any],
) -> Backend:
    from workers.backend import Limits, load_backend

    limits = Limits(
        block_size=given["block_size"],
        num_blocks=given["num_blocks"],
        max_model_len=given["max_model_len"],
        max_num_seqs=given["max_num_seqs"],
        max_num_batched_tokens=given["max_num_batched_tokens"],
        long_prefill_token_threshold=given["long_prefill_token_threshold"],
        kv_dtype=given["kv_dtype"],
        enable_prefix_caching=given["prefix_caching"],
    )
    try:
        return load_backend(
            model,
            limits,
            name=next(iter(given["served_names"]), None),
            seed=seed,
            time_scale=time_scale,
            mean_output_tokens=mean_output_tokens,
            tokenizer=tokenizer,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _options(backend: Backend, given: dict[str, Any]) -> ServeOptions:
    from workers.serve import ServeOptions

    return ServeOptions(
        host=given["host"],
        port=given["port"],
        kv_events_port=given["kv_events_port"],
        kv_replay_port=given["kv_replay_port"],
        kv_events_topic=given["kv_events_topic"],
        served_names=given["served_names"] or (backend.config.model,),
        adapters=given["adapters"],
        report_cached=given["report_cached"],
        shutdown_seconds=given["shutdown_seconds"],
        parent=given["parent"],
    )


def _run(backend: Backend, options: ServeOptions) -> None:
    import uvloop

    from workers.serve import serve

    config = backend.config

    def on_ready(port: int) -> None:
        events = f", KV events on port {options.kv_events_port}" if options.kv_events_port else ""
        click.echo(
            f"ready: http://{options.host}:{port} serves {options.served_names[0]}, "
            f"{config.num_blocks} blocks of {config.block_size} tokens, "
            f"at most {config.max_model_len} tokens a sequence{events}"
        )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(backend, options, on_ready))


def _operator_errors() -> tuple[type[Exception], ...]:
    """What is the operator's to mend: shown as a line, without a traceback."""
    from gateway.errors import ConfigError
    from workers.model.errors import ModelError
    from workers.serve import CannotServe

    return (CannotServe, ConfigError, ModelError)


if __name__ == "__main__":
    main()
