"""Where a JSON request goes, step by step: calls and CPU, adding up to the whole, beside bare forwarding.

    make steps                         a table, also in docs/performance.md
    python -m benchmarks.steps --requests 1000 --turns 5
    python -m benchmarks.steps --tokens 8000 --requests 200

With fewer requests, rounds or turns than usual, or other prompts, it is the table alone.

A step is what its functions do, less what other steps do within: whatever is called outside of all of them is
the loop's, its sockets' and the kernel's. Calls are exact and don't mind a busy machine. CPU is the thread's,
kernel included, read at the borders of the steps. What those clocks take, the whole with them less the whole
without, is taken off again, by borders. All times are of the round that took the least.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import uvloop

from benchmarks import asked
from benchmarks.calls import SHORT, ask, engine, gateway, measure
from benchmarks.ending import in_one_line
from benchmarks.replay.page import write_between
from benchmarks.step_meters import Calls, Time, stepped, without_the_clocks
from benchmarks.wire.bare import Client, Engines
from benchmarks.wire.bench import prompts
from benchmarks.wire.report import ROOT
from benchmarks.wire.routers import python_of

TOKENS = 200
USUAL = {"requests": 500, "rounds": 5, "turns": 3}
Row = tuple[str, float, float, float]
"""Step; of one request its calls of Python, its calls of C, its CPU in µs."""
LOOP = "the loop, its sockets, the kernel"
STEPS: Mapping[str, tuple[str, ...]] = {
    "the client's bytes become a request": ("gateway.api.protocol:GuardedProtocol.data_received",),
    "its body is understood; gate and door": (
        "gateway.api.gate:Gate.enter",
        "gateway.api.serve:understand",
        "gateway.api.gate:Visit.admit",
        "gateway.api.serve:anonymous",
        "gateway.api.serve:head_reading",
    ),
    "its tokens and their keys": ("gateway.routing.reader:Reader.read",),
    "their match in the index": ("gateway.routing.router:Router._match",),
    "scores, choice, lease and promise": (
        "gateway.routing.router:Router.route",
        "gateway.routing.promises:Promises.keep",
    ),
    "the request goes to the worker": (
        "gateway.api.serve:ProxyService._request",
        "gateway.upstream.proxy:Exchange.run",
    ),
    "the worker's bytes become the answer": ("gateway.upstream.connection:Connection.data_received",),
    "what its end teaches the router": (
        "gateway.routing.router:Router.finish",
        "gateway.fleet.load:Lease.release",
    ),
    "records and metrics": (
        "gateway.api.record:Story.end",
        "gateway.api.recorder:Recorders.record",
        "gateway.api.batch:Batch.flush",
    ),
    "what holds these together": ("gateway.api.turns:Turns._run_asgi",),
}


@asynccontextmanager
async def forwarding(engine_port: int) -> AsyncIterator[int]:
    """The bare router in this event loop, in front of that engine; its port."""
    pool = Engines([engine_port])
    server = await asyncio.get_running_loop().create_server(lambda: Client(pool), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        pool.close()


async def counted(requests: list[bytes]) -> Calls:
    """Calls by step, of all `requests`."""
    calls = Calls(LOOP)
    with stepped(STEPS, calls), engine(SHORT) as engine_port:
        async with gateway(engine_port) as port:
            await asyncio.to_thread(ask, port, requests)  # whatever is made once
            sys.setprofile(calls)
            await asyncio.to_thread(ask, port, requests)
            sys.setprofile(None)
    return calls


async def timed(requests: list[bytes], rounds: int) -> Time:
    """By step, of all `requests`: the round that took the least."""
    best = Time(LOOP)
    clock = Time(LOOP)
    with stepped(STEPS, clock), engine(SHORT) as engine_port:
        async with gateway(engine_port) as port:
            await asyncio.to_thread(ask, port, requests)
            for _ in range(rounds):
                clock.begin()
                await asyncio.to_thread(ask, port, requests)
                clock.end()
                if not best.ns or clock.ns.total() < best.ns.total():
                    best.ns, best.borders = clock.ns, clock.borders
    return best


async def play(requests: int, rounds: int, turns: int, tokens: int) -> list[Row]:
    asked = prompts(tokens, requests, stream=False)
    times, plains = [], []
    for _ in range(turns):  # in turns, for the machine may slow down meanwhile
        times.append(await timed(asked, rounds))
        plains.append(await measure(SHORT, asked, rounds))
    best, plain = min(times, key=lambda time: time.ns.total()), min(tally.cpu_s for tally in plains)
    spent = without_the_clocks(best.ns, best.borders, plain * 1e9 * requests)
    calls = await counted(asked)
    rows = [
        (step, calls.python[step] / requests, calls.c[step] / requests, spent.get(step, 0.0) / requests / 1e3)
        for step in (*STEPS, LOOP)
    ]
    _, python, c, cpu = zip(*rows, strict=True)
    rows.append(("**the whole**", sum(python), sum(c), sum(cpu)))
    bare = await measure(SHORT, asked, rounds, forwarding)
    rows.append(("bare forwarding", sum(bare.python.values()), bare.c, 1e6 * bare.cpu_s))
    return rows


def page(rows: list[Row]) -> str:
    lines = ["| step | Python calls | calls into C | CPU µs |", "|---|--:|--:|--:|"]
    lines += [f"| {name} | {python:.0f} | {c:.0f} | {cpu:.0f} |" for name, python, c, cpu in rows]
    return "\n".join(lines)


def whole(given: Mapping[str, int]) -> bool:
    """As good as what the page tells of."""
    return given["tokens"] == TOKENS and all(given[name] >= least for name, least in USUAL.items())


@in_one_line()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=asked.count, default=USUAL["requests"])
    parser.add_argument("--rounds", type=asked.count, default=USUAL["rounds"])
    parser.add_argument(
        "--turns",
        type=asked.count,
        default=USUAL["turns"],
        help="with the clocks and without, each so many times",
    )
    parser.add_argument("--tokens", type=asked.count, default=TOKENS, help="about so many in each prompt")
    parser.add_argument("--page", action="store_true", help="write the page after a shorter run as well")
    args = parser.parse_args(argv)
    page_too = args.page or whole(vars(args))
    if not page_too:
        print("not the usual run, so the page stays as it is: --page writes it")
    rows = uvloop.run(play(args.requests, args.rounds, args.turns, args.tokens))
    told = (
        f"{time.strftime('%Y-%m-%d')}: Python {python_of(sys.executable)}; "
        f"load average {os.getloadavg()[0]:.1f}."
    )
    print(page(rows), told, sep="\n\n")
    if page_too:
        write_between(ROOT / "docs" / "performance.md", {"steps": page(rows), "steps-machine": told})
    return 0


if __name__ == "__main__":
    sys.exit(main())
