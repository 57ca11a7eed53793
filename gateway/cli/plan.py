"""`prefix-gateway plan`: which K/V memory a model needs, and the flags that follow."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from gateway.cli.plan_plot import draw
from gateway.cli.plan_table import render
from gateway.errors import GatewayError
from gateway.planning import Catalog, DoesNotFit, PlanRequest, plan
from gateway.planning.precision import KV, WEIGHTS

DOES_NOT_FIT = 1
BAD_INPUT = 2


def _list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    catalog = Catalog.builtin()
    for title, entries in (
        ("models", catalog.models),
        ("GPUs", catalog.gpus),
        ("scenarios", catalog.scenarios),
    ):
        click.echo(f"{title}: " + ", ".join(entry.name for entry in entries))
    context.exit()


def _tokens(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int | None, int | None]:
    """MEAN or MEAN:LONGEST."""
    if text is None:
        return None, None
    mean, colon, longest = text.partition(":")
    try:
        return int(mean), int(longest) if colon else None
    except ValueError:
        raise click.BadParameter(f"{text!r} is not MEAN or MEAN:LONGEST, in tokens") from None


@click.command("plan", context_settings={"show_default": True})
@click.argument("model", required=False)
@click.option("--model", "model_option", help="The same as MODEL.")
@click.option("--gpu", help="Name from the table (--list).")
@click.option("--gpu-memory-gib", type=float, help="Memory of one GPU that the driver reports.")
@click.option("--gpu-bandwidth", type=float, help="Memory bandwidth of one GPU, GB/s.")
@click.option("--gpu-tflops", type=float, help="Dense 16-bit TFLOP/s of one GPU.")
@click.option("--gpus", type=int, help="All GPUs there are; a multiple of --tp.")
@click.option("--tp", "tensor_parallel", type=int, help="GPUs that share one copy of the model.")
@click.option(
    "--weights", type=click.Choice(list(WEIGHTS)), help="Weight precision; without it, the checkpoint's own."
)
@click.option(
    "--kv-dtype",
    "kv",
    type=click.Choice(["auto", *KV]),
    default="auto",
    help="K/V precision; auto: what engines keep of this checkpoint.",
)
@click.option("--gpu-memory-utilization", type=float, default=0.9)
@click.option("--reserve-gib", type=float, help="A GPU's memory beside weights and K/V; estimated otherwise.")
@click.option("--block-size", type=int, help="Tokens a block.  [default: 16; 64 for MLA]")
@click.option("--max-model-len", type=int, help="Advised otherwise.")
@click.option("--max-num-seqs", type=int, help="Advised otherwise.")
@click.option("--max-num-batched-tokens", type=int, help="The engine's default otherwise.")
@click.option("--scenario", default="chat", help="chat, document-qa or long-document.")
@click.option("--tokens-in", callback=_tokens, metavar="MEAN[:LONGEST]", help="Prompt tokens.")
@click.option("--tokens-out", callback=_tokens, metavar="MEAN[:LONGEST]", help="Generated tokens.")
@click.option("--prefix", help="What prompts have in common: tokens, or a share such as 60%.")
@click.option("--concurrency", type=int, help="Requests in flight at once, in all.")
@click.option("--ttft", "ttft_target", type=float, help="Target for the first token, seconds.")
@click.option("--itl", "itl_target", type=float, help="Target between tokens, seconds.")
@click.option("--json", "as_json", is_flag=True, help="The whole plan as JSON.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this PNG.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Known names.")
def command(
    model: str | None,
    model_option: str | None,
    tokens_in: tuple[int | None, int | None],
    tokens_out: tuple[int | None, int | None],
    prefix: str | None,
    as_json: bool,
    plot: Path | None,
    **fields: object,
) -> None:
    """Plan the K/V memory of MODEL: a built-in name, a config.json, a model folder or a GGUF file.

    Exit status: 0 it fits, 1 it does not, 2 the request makes no sense.
    """
    if model is not None and model_option is not None:
        raise click.UsageError("name the model once: as MODEL or with --model")
    try:
        request = msgspec.convert(
            {
                **{key: value for key, value in fields.items() if value is not None},
                "model": model or model_option or "",
                "input_mean": tokens_in[0],
                "input_longest": tokens_in[1],
                "output_mean": tokens_out[0],
                "output_longest": tokens_out[1],
            },
            PlanRequest,
        )
        catalog = Catalog.builtin()
        request = msgspec.structs.replace(request, prefix=_prefix(prefix, request, catalog))
        made = plan(request, catalog, read_files=True)
        if plot is not None:
            draw(made, plot)
    except DoesNotFit as error:
        _fail(error.message, DOES_NOT_FIT)
    except (GatewayError, msgspec.ValidationError) as error:
        _fail(str(error), BAD_INPUT)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
    else:
        render(made, Console())
    if plot is not None:
        click.echo(f"drawn: {plot}", err=True)


def _prefix(text: str | None, request: PlanRequest, catalog: Catalog) -> int | None:
    """Tokens, or a share of the mean prompt."""
    if text is None:
        return None
    try:
        if text.endswith("%"):
            mean = request.input_mean
            if mean is None:
                mean = catalog.scenario(request.scenario).input_mean
            return round(mean * float(text[:-1]) / 100)
        return int(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither tokens nor a share such as 60%", param_hint="--prefix"
        ) from None


def _fail(message: str, status: int) -> None:
    click.echo(f"plan: {message}", err=True)
    sys.exit(status)
