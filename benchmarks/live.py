"""Multi-turn chats over HTTP against simulated engines in real time, through this gateway or another router.

    python -m benchmarks.live                                        our gateway, four engines started for it
    python -m benchmarks.live --url http://router:8000 --worker http://engine:9001 --worker …     any router

160 conversations of 8 turns over 8 shared system prompts, 16 at a time, each turn asked when the last answer
is there. Hit rate and prefilled tokens come from the engines' own counters, TTFT from the client. Run it on a
quiet machine: client, router and engines share its cores.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.fleet import running_fleet
from benchmarks.replay.outcome import quantile

HITS = "vllm:prefix_cache_hits_total"
QUERIES = "vllm:prefix_cache_queries_total"


@dataclass(frozen=True, slots=True)
class Chats:
    conversations: int = 160
    turns: int = 8
    systems: int = 8
    at_once: int = 16
    system_words: int = 400
    user_words: int = 120
    answer_tokens: int = 32
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LiveResult:
    router: str
    requests: int
    failed: int
    hit_rate: float
    balance: float
    """Prefilled tokens of the busiest engine over the mean's."""
    ttft_p50_s: float
    ttft_p99_s: float
    goodput_rps: float
    seconds: float


@dataclass(slots=True)
class Tally:
    ttfts: list[float] = field(default_factory=list)
    failed: int = 0


async def counters(client: httpx.AsyncClient, workers: Sequence[str]) -> list[tuple[float, float]]:
    """(cached tokens, tokens looked up) of each engine since its start."""
    found = []
    for worker in workers:
        text = (await client.get(f"{worker}/metrics")).raise_for_status().text
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        sums = [
            sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
            for name in (HITS, QUERIES)
        ]
        found.append((sums[0], sums[1]))
    return found


async def converse(
    client: httpx.AsyncClient, url: str, model: str, number: int, chats: Chats, tally: Tally
) -> None:
    rng = random.Random(f"{chats.seed}/{number}")
    system = words(random.Random(f"{chats.seed}/system/{number % chats.systems}"), chats.system_words)
    messages = [{"role": "system", "content": system}]
    for _turn in range(chats.turns):
        messages.append({"role": "user", "content": words(rng, chats.user_words)})
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": chats.answer_tokens,
            "temperature": 0,
            "stream": True,
            "user": f"user-{number}",
        }
        began = time.perf_counter()
        answer = ""
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                tally.failed += 1
                return
            first: float | None = None
            async for line in response.aiter_lines():
                piece = content_of(line)
                if piece and first is None:
                    first = time.perf_counter() - began
                answer += piece
        if first is None:
            tally.failed += 1
            return
        tally.ttfts.append(first)
        messages.append({"role": "assistant", "content": answer})


def content_of(line: str) -> str:
    """The text in one line of a stream; empty where it carries none."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return ""
    choices = json.loads(line[6:]).get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


def words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(count))


async def measure(
    router: str, url: str, model: str, workers: Sequence[str], chats: Chats, slo_s: float
) -> LiveResult:
    tally = Tally()
    limits = httpx.Limits(max_connections=chats.at_once + 4)
    with Progress(transient=True) as bar:
        task = bar.add_task(router, total=chats.conversations)
        async with httpx.AsyncClient(timeout=120.0, limits=limits, trust_env=False) as client:
            before = await counters(client, workers)
            began = time.perf_counter()
            places = asyncio.Semaphore(chats.at_once)

            async def one(number: int) -> None:
                async with places:
                    await converse(client, url, model, number, chats, tally)
                bar.advance(task)

            await asyncio.gather(*(one(number) for number in range(chats.conversations)))
            seconds = time.perf_counter() - began
            after = await counters(client, workers)
    hits = [b[0] - a[0] for a, b in zip(before, after, strict=True)]
    asked = [b[1] - a[1] for a, b in zip(before, after, strict=True)]
    prefilled = [queries - found for queries, found in zip(asked, hits, strict=True)]
    ttfts = sorted(tally.ttfts) or [float("nan")]
    return LiveResult(
        router=router,
        requests=len(tally.ttfts),
        failed=tally.failed,
        hit_rate=sum(hits) / max(1.0, sum(asked)),
        balance=max(prefilled) * len(prefilled) / max(1.0, sum(prefilled)),
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p99_s=quantile(ttfts, 0.99),
        goodput_rps=sum(ttft <= slo_s for ttft in ttfts) / seconds,
        seconds=seconds,
    )


@click.command(context_settings={"show_default": True})
@click.option("--url", default=None, help="A router that runs already; else our gateway is started.")
@click.option("--worker", "workers", multiple=True, help="Engines behind it, for their counters; repeat.")
@click.option("--model", default=None, help="The model's name there.")
@click.option("--name", default="prefix-gateway", help="What to call it in the results.")
@click.option("--engines", type=click.IntRange(min=1), default=4, help="How many to start.")
@click.option("--profile", default="20us-per-token,num_blocks=1500", help="Simulated engine to start.")
@click.option("--policy", default="estimated_ttft", help="Of the gateway that is started.")
@click.option("--conversations", type=click.IntRange(min=1), default=160)
@click.option("--turns", type=click.IntRange(min=1), default=8)
@click.option("--slo-ttft", type=float, default=0.5, help="Seconds; goodput counts requests within.")
@click.option("--seed", type=int, default=0)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), default=None)
def main(
    url: str | None,
    workers: tuple[str, ...],
    model: str | None,
    name: str,
    engines: int,
    profile: str,
    policy: str,
    conversations: int,
    turns: int,
    slo_ttft: float,
    seed: int,
    out: Path | None,
) -> None:
    """Multi-turn chats through a router: hit rate, balance, TTFT."""
    chats = Chats(conversations=conversations, turns=turns, seed=seed)
    gateway = running_fleet(
        url, url, model=f"sim:{profile}", workers=engines, gateway_args=("--policy", policy)
    )
    with gateway as fleet:
        served = model or fleet.model()
        urls = list(workers) or fleet.workers()
        result = asyncio.run(measure(name, fleet.url, served, urls, chats, slo_ttft))
    table = Table(*(asdict(result)))
    table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in asdict(result).values()))
    Console(width=150).print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        rows = json.loads(out.read_text()) if out.exists() else []
        out.write_text(json.dumps([*rows, asdict(result)], indent=1) + "\n")


if __name__ == "__main__":
    main()
