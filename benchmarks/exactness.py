"""Exactness: is what the gateway promises what the engine delivers, request for request?

    python -m benchmarks.exactness                       starts a tiny fleet of two reference workers
    python -m benchmarks.exactness --url http://… --admin-url http://…     any gateway, any engines

A seeded workload of sequential requests: shared roots, edits in the middle, exact multiples of 16, salts,
repeats, chats by each API that takes them, decode that fills blocks, and far more blocks than caches hold.
After each request the gateway's view is left to settle: it has applied all that each engine published (asked
of the engine's replay endpoint), and nothing new for `--settle` seconds. Then the next is sent: its
`X-Gateway-Matched-Tokens` is compared with the engine's own count of cached tokens. Exit code 1 on any
difference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import zmq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import asked
from benchmarks.dialects import APIS, by_api, counted
from benchmarks.ending import in_one_line, write
from benchmarks.fleet import Fleet, running_fleet

BLOCK = 16
END_OF_REPLAY = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    number: int
    kind: str
    worker: str
    prompt_tokens: int
    promised: int
    cached: int

    @property
    def exact(self) -> bool:
        return self.promised == self.cached


def workload(
    seed: int, count: int, model: str, *, vocab: range, max_prompt: int, apis: Sequence[str] = APIS
) -> Iterator[Case]:
    """`count` requests that no cache of ordinary size can hold all at once, the same for the same seed. Chats
    take the APIs in turn; their prompts are the same whichever they are."""
    rng = random.Random(seed)
    turn_of = itertools.cycle(apis)

    def ids(n: int) -> list[int]:
        return [rng.randrange(vocab.start, vocab.stop) for _ in range(n)]

    roots = [ids(rng.randrange(4, 14) * BLOCK) for _ in range(6)]
    systems = [" ".join(rng.choice(_WORDS) for _ in range(60)) for _ in range(3)]
    past: list[list[int]] = []
    salts = ["tenant-a", "tenant-b"]

    for _ in range(count):
        kind = rng.choices(
            ["root", "repeat", "edit", "multiple", "salt", "fresh", "short", "chat"],
            [28, 14, 14, 10, 12, 8, 4, 10],
        )[0]
        extra: dict[str, Any] = {}
        if kind == "chat":
            system, turns = rng.choice(systems), []
            for _ in range(rng.randrange(1, 4)):
                turns.append({"role": "user", "content": " ".join(rng.choice(_WORDS) for _ in range(12))})
                turns.append({"role": "assistant", "content": " ".join(rng.choice(_WORDS) for _ in range(8))})
            turns.pop()
            api = next(turn_of)
            yield Case(api, *by_api(api, model, system, turns, max_tokens=rng.randrange(1, 20)))
            continue
        if kind == "root":
            prompt = rng.choice(roots) + ids(rng.randrange(1, 60))
        elif kind == "repeat" and past:
            prompt = rng.choice(past)
        elif kind == "edit" and past:
            prompt = list(rng.choice(past))
            prompt[rng.randrange(len(prompt))] = rng.randrange(vocab.start, vocab.stop)
        elif kind == "multiple":
            whole = rng.choice(roots) + ids(rng.randrange(0, 4) * BLOCK)
            prompt = whole[: max(BLOCK, len(whole) // BLOCK * BLOCK)]
        elif kind == "salt":
            prompt = rng.choice(roots) + ids(rng.randrange(1, 20))
            extra["cache_salt"] = rng.choice(salts)
        elif kind == "short":
            prompt = ids(rng.randrange(1, BLOCK + 2))
        else:
            prompt = ids(rng.randrange(BLOCK, 12 * BLOCK))
        prompt = prompt[:max_prompt]
        past.append(prompt)
        del past[:-40]
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": rng.randrange(1, 24),
            "temperature": 0,
            **extra,
        }
        yield Case(kind, "/v1/completions", body)


_TEXT = (
    "block cache worker prefix token route lease epoch replay gauge stream queue prefill decode batch reuse "
    "naïve façade 漢字 emoji 🙂 null true 12345 3.14 don't shouldn't ---- <tag> {json} ``` tab"
)
_WORDS = _TEXT.split()


class Client:
    """Sends one request and reads what was promised and what was delivered."""

    def __init__(self, fleet: Fleet, settle: float) -> None:
        self._fleet, self._settle = fleet, settle
        self._http = httpx.Client(timeout=120.0, trust_env=False)
        self._zmq = zmq.Context()
        self._dealers: dict[str, zmq.Socket[bytes]] = {}

    def close(self) -> None:
        self._http.close()
        self._zmq.destroy(linger=0)

    def send(self, number: int, case: Case) -> Verdict:
        answer = self._http.post(self._fleet.url + case.path, json=case.body)
        if answer.status_code != 200:
            raise SystemExit(f"request {number} ({case.kind}): {answer.status_code} {answer.text[:300]}")
        counts = counted(answer.json()["usage"])
        if counts is None:
            raise SystemExit(
                "the engine does not report cached_tokens: start vLLM with --enable-prompt-tokens-details"
            )
        return Verdict(
            number,
            case.kind,
            answer.headers["x-gateway-worker"],
            counts[0],
            int(answer.headers["x-gateway-matched-tokens"]),
            counts[1],
        )

    def settle(self, timeout: float = 30.0) -> None:
        """Until the gateway has applied all that was published, and nothing new for the settle time."""
        deadline = time.monotonic() + timeout
        seen, since = self._applied(), time.monotonic()
        while time.monotonic() - since < self._settle or any(self._behind(w) for w in seen):
            if time.monotonic() > deadline:
                raise SystemExit("KV events did not settle within 30 s: is other traffic on this fleet?")
            time.sleep(min(0.01, self._settle / 4))
            now = self._applied()
            if now != seen:
                seen, since = now, time.monotonic()

    def _applied(self) -> list[dict[str, Any]]:
        """How far each worker's events have been applied."""
        workers = (
            self._http.get(self._fleet.admin_url + "/admin/workers").raise_for_status().json()["workers"]
        )
        return [
            {"next_seq": w["events"]["next_seq"], "replay": w["events"]["replay"]}
            for w in workers
            if w["events"]
        ]

    def _behind(self, worker: dict[str, Any]) -> bool:
        """Whether its engine has published more than was applied. A publisher answers a replay after what it
        has published, so the answer settles it; an engine without a replay endpoint is left to time."""
        endpoint: str | None = worker["replay"]
        if endpoint is None:
            return False
        dealer = self._dealers.get(endpoint)
        if dealer is None:
            dealer = self._dealers[endpoint] = self._zmq.socket(zmq.DEALER)
            dealer.set(zmq.LINGER, 0)
            dealer.set(zmq.RCVTIMEO, 10_000)
            dealer.connect(endpoint)
        dealer.send_multipart([b"", worker["next_seq"].to_bytes(8, "big")])
        more = 0
        while dealer.recv_multipart()[-2] != END_OF_REPLAY:
            more += 1
        return more > 0


def run(
    fleet: Fleet,
    *,
    requests: int,
    seed: int,
    settle: float,
    max_prompt: int,
    quiet: bool,
    apis: Sequence[str] = APIS,
) -> list[Verdict]:
    client = Client(fleet, settle)
    try:
        client.settle()
        cases = workload(
            seed, requests, fleet.model(), vocab=range(100, 1000), max_prompt=max_prompt, apis=apis
        )
        verdicts = []
        for number, case in enumerate(track(cases, total=requests, description="requests", disable=quiet)):
            verdicts.append(client.send(number, case))
            client.settle()
        return verdicts
    finally:
        client.close()


def report(verdicts: list[Verdict], console: Console) -> dict[str, Any]:
    table = Table("kind", "requests", "exact", "promised tokens", "delivered tokens")
    for kind in sorted({v.kind for v in verdicts}):
        of = [v for v in verdicts if v.kind == kind]
        exact = sum(v.exact for v in of)
        table.add_row(
            kind, str(len(of)), str(exact), str(sum(v.promised for v in of)), str(sum(v.cached for v in of))
        )
    console.print(table)
    wrong = [v for v in verdicts if not v.exact]
    for v in wrong[:20]:
        console.print(
            f"  request {v.number} ({v.kind}) on {v.worker}: promised {v.promised}, delivered {v.cached}"
        )
    prompt = sum(v.prompt_tokens for v in verdicts)
    summary = {
        "requests": len(verdicts),
        "exact": len(verdicts) - len(wrong),
        "hit_rate": round(sum(v.cached for v in verdicts) / max(1, prompt), 4),
        "per_worker": dict(Counter(v.worker for v in verdicts)),
        "wrong": [asdict(v) for v in wrong],
    }
    console.print(
        f"{summary['exact']} of {summary['requests']} promises exact, "
        f"token hit rate {summary['hit_rate']:.3f}"
    )
    return summary


@in_one_line()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="public URL of a running gateway; without it a tiny fleet is started")
    parser.add_argument("--admin-url", help="its admin URL (default: the port after)")
    parser.add_argument("--requests", type=asked.count, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--settle", type=asked.amount, default=0.03, help="seconds without a new event; vLLM: 0.3"
    )
    parser.add_argument(
        "--num-blocks", type=asked.count, default=96, help="blocks of each started worker's cache"
    )
    parser.add_argument("--max-prompt", type=asked.count, default=400, help="tokens")
    parser.add_argument(
        "--apis", nargs="+", choices=APIS, default=APIS, help="which chats are sent by (default: all in turn)"
    )
    parser.add_argument("--json", type=asked.writable, help="write the result here")
    args = parser.parse_args()
    console = Console()
    engine = ("--num-blocks", str(args.num_blocks), "--max-model-len", "512")
    with running_fleet(args.url, args.admin_url, model="tiny", worker_args=engine) as fleet:
        verdicts = run(
            fleet,
            requests=args.requests,
            seed=args.seed,
            settle=args.settle,
            max_prompt=args.max_prompt,
            apis=args.apis,
            quiet=not sys.stderr.isatty(),
        )
    summary = report(verdicts, console)
    if args.json:
        write(args.json, json.dumps(summary, indent=1) + "\n")
    return 0 if summary["exact"] == summary["requests"] else 1


if __name__ == "__main__":
    sys.exit(main())
