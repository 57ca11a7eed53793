"""``python -m benchmarks.replay TRACE --format mooncake --workers 8 --blocks-per-worker 850 --rate 4,8``"""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import click
from rich.console import Console

from benchmarks.asked import Finite, OutputFile
from benchmarks.ending import in_one_line
from benchmarks.replay.batch import run_cases
from benchmarks.replay.cases import BLOCK_SIZES, FLOOR, Case, Source, check_policy, policies_named, save
from benchmarks.replay.formats import FORMATS, MOST_COPIED
from benchmarks.replay.report import draw, picture_kinds, show
from benchmarks.replay.simulation import Delays
from benchmarks.replay.size import MOST_BLOCKS, MOST_REPLICAS, MOST_WORKERS
from benchmarks.replay.traffic import Beginning, Bursts, Traffic
from gateway.errors import ConfigError


def rates_named(_context: click.Context, _param: click.Parameter, text: str) -> list[float]:
    rates = []
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            rate = 0.0
        if not (isfinite(rate) and rate > 0):
            raise click.BadParameter(f"{part.strip()!r} is no rate: a finite number above 0 is")
        rates.append(rate)
    return rates


def picture(_context: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """A file that can be drawn."""
    if path is None:
        return None
    try:
        kinds = picture_kinds()
    except ImportError:
        raise click.BadParameter("this needs matplotlib: pip install matplotlib") from None
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise click.BadParameter(f"{path} is no kind of picture; its end is to be one of {', '.join(kinds)}")
    return path


def bursts_named(_context: click.Context, _param: click.Parameter, text: str | None) -> Bursts | None:
    if text is None:
        return None
    count, times = _two(text, "250:4")
    if count < 1 or count != int(count) or times <= 1:
        raise click.BadParameter(f"{text!r}: a whole number of requests, and more than 1 times their rate")
    return Bursts(int(count), times)


def beginning_named(_context: click.Context, _param: click.Parameter, text: str | None) -> Beginning | None:
    if text is None:
        return None
    share, tokens = _two(text, "0.5:8192")
    if not 0 < share <= 1 or tokens < 1 or tokens != int(tokens):
        raise click.BadParameter(f"{text!r}: a share of more than 0 up to 1, and a whole number of tokens")
    return Beginning(share, int(tokens))


def _two(text: str, example: str) -> tuple[float, float]:
    """Finite ones."""
    try:
        first, second = map(float, text.split(":"))
    except ValueError:
        first = second = float("nan")
    if not (isfinite(first) and isfinite(second)):
        raise click.BadParameter(f"{text!r} are no two numbers like {example}")
    return first, second


class BadInput(click.ClickException):
    """Whoever asked can mend it."""

    exit_code = 2


@click.command(context_settings={"show_default": True})
@click.argument("trace", type=click.Path(exists=True, dir_okay=False))
@click.option("--format", "kind", type=click.Choice(list(FORMATS)), required=True)
@click.option("--workers", type=click.IntRange(min=1), default=8, help=f"At most {MOST_WORKERS:,}.")
@click.option(
    "--blocks-per-worker",
    type=click.IntRange(min=1),
    required=True,
    help=f"Blocks of --block-size; of all workers at most {MOST_BLOCKS:,}.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=0),
    default=0,
    help="Tokens; 0: mooncake 512, agentic 256, else 16.",
)
@click.option("--profile", default="h100-8b", help="Also a mix, h100-8b*6+l4-8b*2.")
@click.option(
    "--rate", "rates", default="4", callback=rates_named, help="Requests a second, several split by commas."
)
@click.option(
    "--policy",
    default="all",
    help="all, or names split by commas; by ; with parameters, name:k=v. hindsight: "
    "a router that knows who comes when.",
)
@click.option(
    "--replicas", type=click.IntRange(min=1), default=1, help=f"Of the gateway; at most {MOST_REPLICAS}."
)
@click.option("--sharing/--no-sharing", default=True, help="Whether replicas share what they know.")
@click.option(
    "--event-delay",
    type=Finite(min=0),
    default=0.01,
    help="Seconds from an engine's step to the index.",
)
@click.option("--placement-delay", type=Finite(min=0), default=0.005, help="Seconds to other replicas.")
@click.option(
    "--load-interval",
    type=Finite(min=0, min_open=True),
    default=0.05,
    help="Seconds between a replica's load reports.",
)
@click.option(
    "--slo-ttft",
    type=Finite(min=0),
    default=5.0,
    help="Seconds; goodput counts requests within both.",
)
@click.option("--slo-tpot", type=Finite(min=0), default=0.1, help="Seconds a token.")
@click.option(
    "--max-ttft",
    type=Finite(min=0),
    default=0.0,
    help="Seconds; refuse whose first token is expected later. 0: nobody.",
)
@click.option(
    "--slice-after",
    type=Finite(min=0),
    default=0.0,
    help="Seconds; prompts that take longer by themselves are sent in slices. 0: none.",
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out the first so many requests.")
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Only the first so many requests.")
@click.option(
    "--longest", type=click.IntRange(min=1), default=131_072, help="Leave out requests of more tokens in all."
)
@click.option(
    "--copies",
    type=click.IntRange(min=1),
    default=1,
    help=f"Independent sets of sessions (agentic); of at most {MOST_COPIED:,} requests in all.",
)
@click.option(
    "--bursts",
    callback=bursts_named,
    metavar="REQUESTS:TIMES",
    help="Of every so many requests all come so many times as fast, and before them nobody.",
)
@click.option(
    "--cold",
    type=Finite(min=0, max=1),
    default=0.0,
    help="Share of sessions whose requests become strangers' that nobody has seen.",
)
@click.option(
    "--hot",
    callback=beginning_named,
    metavar="SHARE:TOKENS",
    help="A share of the sessions begins with so many tokens, the same for all of them.",
)
@click.option(
    "--documents",
    callback=beginning_named,
    metavar="SHARE:TOKENS",
    help="A share of the sessions begins with so many tokens of its own.",
)
@click.option("--seed", type=int, default=0)
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes.")
@click.option("--json", "out", type=OutputFile(), default=None)
@click.option("--plot", type=OutputFile(), callback=picture, default=None)
@in_one_line()
def main(
    trace: str,
    kind: str,
    workers: int,
    blocks_per_worker: int,
    block_size: int,
    profile: str,
    rates: list[float],
    policy: str,
    replicas: int,
    sharing: bool,
    event_delay: float,
    placement_delay: float,
    load_interval: float,
    slo_ttft: float,
    slo_tpot: float,
    max_ttft: float,
    slice_after: float,
    skip: int,
    limit: int | None,
    longest: int,
    copies: int,
    bursts: Bursts | None,
    cold: float,
    hot: Beginning | None,
    documents: Beginning | None,
    seed: int,
    jobs: int,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Replay a request trace in virtual time against simulated engines, once for each policy and rate."""
    size = block_size or BLOCK_SIZES[kind]
    longest = min(longest, blocks_per_worker * size - 1)
    traffic = Traffic(bursts, cold, hot, documents)
    source = Source(trace, kind, block_size, skip, limit, longest, copies, seed, traffic)
    for option, one in (("--hot", hot), ("--documents", documents)):
        if one is not None and one.tokens > longest:
            raise BadInput(
                f"{option}: whoever has {one.tokens:,} tokens before his prompt is left out: in all "
                f"{longest:,} are the most (--longest, and a worker's blocks)"
            )
    names = policies_named(policy)
    if FLOOR not in names:
        names = [FLOOR, *names]
    cases = [
        Case(
            policy=name,
            workers=workers,
            blocks_per_worker=blocks_per_worker,
            rate=rate,
            profile=profile,
            replicas=replicas,
            shared=sharing,
            seed=seed,
            delays=Delays(event_delay, placement_delay, load_interval),
            slo_ttft_s=slo_ttft,
            slo_tpot_s=slo_tpot,
            max_ttft_s=max_ttft,
            slice_after_s=slice_after,
        )
        for rate in rates
        for name in names
    ]
    try:
        for name in names:
            check_policy(name)
        rows = run_cases(source, cases, jobs)
    except (ValueError, OSError, ConfigError) as error:
        raise BadInput(str(error)) from error
    # first, so that a disk that is full by then costs the files alone
    show(rows, Console(width=150))
    try:
        if out is not None:
            save(rows, out)
        if plot is not None:
            draw(rows, plot)
    except OSError as error:
        raise click.ClickException(f"what was computed could not be written: {error}") from error


if __name__ == "__main__":
    main()
