"""`prefix-gateway doctor`: watches a fleet, names what ails it, and says what to do about it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.cli.output import tables
from gateway.diagnosis.collect import Progress as Told
from gateway.diagnosis.collect import watch
from gateway.diagnosis.diagnose import RULES, diagnose, document
from gateway.diagnosis.facts import Facts
from gateway.diagnosis.finding import Finding, exit_status, percent
from gateway.diagnosis.prometheus import read_prometheus

_STYLES = {"critical": "bold red", "warning": "yellow", "note": "cyan"}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DEFAULT_ADMIN = "http://127.0.0.1:8081"


def _seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no span of time: 30s, 15m, 1h")
    seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if not seconds:
        raise click.BadParameter(f"{text!r}: in no time nothing is seen")
    return seconds


@click.command("doctor", context_settings={"show_default": True})
@click.option(
    "--admin-url", "admin_urls", multiple=True, envvar="GATEWAY_ADMIN_URL",
    help=f"Admin port of a replica; repeat for all of them.  [{_DEFAULT_ADMIN}]",
)  # fmt: skip
@click.option("--admin-token", envvar="GATEWAY_ADMIN_TOKEN", help="The admin port's token, if it has one.")
@click.option("--prometheus", metavar="URL", help="Read what this Prometheus has seen, without watching.")
@click.option("--window", default="30s", callback=_seconds, help="How long to watch, or to look back.")
@click.option("--interval", default="1s", callback=_seconds, help="Between two looks while watching.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(
    admin_urls: tuple[str, ...],
    admin_token: str | None,
    prometheus: str | None,
    window: float,
    interval: float,
    as_json: bool,
) -> None:
    """Watch a live fleet and name what ails it: symptom, figures, cause, remedy.

    Reads the metrics of gateways and engines and the gateways' admin ports; sends no request of its own.

    \b
    Exit status: 0 healthy, 1 warnings, 3 critical findings, 2 it could not look.
    """
    if prometheus is not None:
        facts = asyncio.run(
            read_prometheus(
                prometheus, now=time.time(), window=window, admin_urls=admin_urls, token=admin_token
            )
        )
    else:
        with _progress(shown=sys.stderr.isatty()) as told:
            facts = asyncio.run(
                watch(
                    admin_urls or (_DEFAULT_ADMIN,),
                    window=window,
                    interval=max(0.05, interval),
                    token=admin_token,
                    progress=told,
                )
            )
    findings = diagnose(facts)
    if as_json:
        click.echo(json.dumps(document(facts, findings), indent=2))
    else:
        _show(facts, findings)
    sys.exit(exit_status(findings))


@contextmanager
def _progress(*, shown: bool) -> Iterator[Told]:
    """A bar on a terminal; a line at the start elsewhere, so that nobody wonders what it waits for."""
    if not shown:
        click.echo("watching the fleet …", err=True)
        yield lambda done, all_: None
        return
    columns = (TextColumn("watching the fleet"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("watch", total=1.0)
        yield lambda done, all_: bar.update(task, completed=done / all_ if all_ else 1.0)


def _show(facts: Facts, findings: Sequence[Finding]) -> None:
    console = tables(110)
    console.print(
        f"{len(facts.replicas)} gateway(s), {len(facts.engines)} engine(s), "
        f"{facts.window_s:.0f} s, {len(RULES)} rules"
    )
    for finding in findings:
        name = finding.severity.name.lower()
        console.print(f"\n[{_STYLES[name]}]{name}[/]  {finding.id}  {finding.subject}", soft_wrap=True)
        console.print(f"  {finding.symptom}", markup=False)
        for evidence in finding.evidence:
            console.print(f"    {evidence}", markup=False)
        console.print(f"  cause: {finding.cause} (confidence {percent(finding.confidence)})", markup=False)
        for remedy in finding.remedy:
            console.print(f"  → {remedy}", markup=False)
        console.print(f"  runbook: {finding.runbook}", markup=False)
    if not findings:
        console.print("\nnothing ails this fleet")
