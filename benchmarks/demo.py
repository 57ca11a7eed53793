"""The experiment that made us build this: does a shared prefix come back faster, and who makes that happen?

    make demo                                  starts a gateway and two workers, measures, stops them
    make demo DEMO_ARGS=--page                 the same, and replaces the documents' figures and picture
    python -m benchmarks.demo --url http://127.0.0.1:8080      measures a running `make run`

Twenty customer-service questions over one system prompt of about 500 tokens, then three chats of six turns in
turn (an odd number, so that round robin over two workers does not keep a chat on one of them by chance). Once
routed for cache affinity, once round robin; before each the workers' caches are emptied. TTFT is a client's:
from sending the request to the first content of the stream. One request at a time, so it is prefill that is
measured, not queueing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import asked
from benchmarks.demo_prompts import CHATS, QUESTIONS, SYSTEM
from benchmarks.ending import in_one_line, write
from benchmarks.fleet import Fleet, running_fleet

ANSWER_TOKENS = {"question": 8, "chat": 32}
"""A question is measured to its first token; a chat goes on from its answers."""

MODEL = "smollm2"
PAGE, OWN = Path("docs/demo"), Path(".cache/demo")
"""The documents' folder, and one that is nobody's."""
FORGET_S = 30.0
"""How long the index may take to hear that the caches are empty."""
ARMS = {"affinity": "estimated_ttft", "round robin": "round_robin"}


@dataclass(frozen=True, slots=True)
class Sample:
    arm: str
    part: str
    """question or chat"""
    turn: int
    worker: str
    ttft_s: float
    prompt_tokens: int
    matched_tokens: int
    cached_tokens: int

    @property
    def cold(self) -> bool:
        return self.cached_tokens == 0


class Client:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._http = httpx.Client(timeout=300.0, trust_env=False)
        self._model = fleet.model()

    def close(self) -> None:
        self._http.close()

    def ask(self, arm: str, part: str, turn: int, messages: list[dict[str, str]]) -> tuple[Sample, str]:
        """One streamed request: its sample and the answer's text."""
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": ANSWER_TOKENS[part],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text, usage, ttft = "", None, None
        sent = time.perf_counter()
        with self._http.stream("POST", self._fleet.url + "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise SystemExit(f"{answer.status_code}: {answer.read().decode()[:300]}")
            for line in answer.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    delta = choice["delta"].get("content") or ""
                    if delta and ttft is None:
                        ttft = time.perf_counter() - sent
                    text += delta
            headers = answer.headers
        if usage is None:
            raise SystemExit("the worker sent no usage in its stream")
        sample = Sample(
            arm,
            part,
            turn,
            headers["x-gateway-worker"],
            ttft if ttft is not None else time.perf_counter() - sent,
            usage["prompt_tokens"],
            int(headers["x-gateway-matched-tokens"]),
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )
        return sample, text

    def start_arm(self, policy: str) -> None:
        """Empty every worker's cache, see the index follow, and switch the policy."""
        for worker in self._fleet.workers():
            done = self._http.post(worker + "/reset_prefix_cache").raise_for_status()
            if done.content and not done.json().get("success", True):
                raise SystemExit(f"{worker} is busy and refuses to empty its cache: is other traffic on it?")
            # it says so with its next step: a prompt of less than a block has it make one, and stays nowhere
            body = {"model": self._model, "prompt": "Hi", "max_tokens": 1}
            self._http.post(worker + "/v1/completions", json=body).raise_for_status()
        deadline = time.monotonic() + FORGET_S
        while any(self._held().values()):
            if time.monotonic() > deadline:
                raise SystemExit("the index still holds what workers gave up: do they publish KV events?")
            time.sleep(0.01)
        self._http.put(self._fleet.admin_url + "/admin/policy", json={"policy": policy}).raise_for_status()

    def _held(self) -> dict[str, int]:
        """Blocks that the gateway believes each worker to hold."""
        answer = self._http.get(self._fleet.admin_url + "/admin/index/shared").raise_for_status().json()
        return dict(answer["index"]["held"])


def measure(fleet: Fleet, *, progress: Progress) -> list[Sample]:
    client = Client(fleet)
    samples: list[Sample] = []
    total = len(ARMS) * (len(QUESTIONS) + sum(len(c) for c in CHATS))
    task = progress.add_task("measuring", total=total)
    system = {"role": "system", "content": SYSTEM}
    try:
        for arm, policy in ARMS.items():
            client.start_arm(policy)
            for question in QUESTIONS:
                sample, _ = client.ask(arm, "question", 0, [system, {"role": "user", "content": question}])
                samples.append(sample)
                progress.advance(task)
            histories: list[list[dict[str, str]]] = [[system] for _ in CHATS]
            for turn in range(max(len(c) for c in CHATS)):
                for chat, history in zip(CHATS, histories, strict=True):
                    history.append({"role": "user", "content": chat[turn]})
                    sample, text = client.ask(arm, "chat", turn, history)
                    history.append({"role": "assistant", "content": text})
                    samples.append(sample)
                    progress.advance(task)
        client.start_arm(ARMS["affinity"])
    finally:
        client.close()
    return samples


def summarise(samples: list[Sample]) -> dict[str, Any]:
    """Medians in seconds and token hit rates, per arm; `cold` is the very first request of each worker."""
    arms: dict[str, Any] = {}
    for arm in ARMS:
        of = [s for s in samples if s.arm == arm]
        warm = [s for s in of if not s.cold]
        prompt, cached = sum(s.prompt_tokens for s in of), sum(s.cached_tokens for s in of)
        arms[arm] = {
            "requests": len(of),
            "cold_requests": len(of) - len(warm),
            "cold_ttft_median_s": statistics.median(s.ttft_s for s in of if s.cold),
            "warm_ttft_median_s": statistics.median(s.ttft_s for s in warm),
            "warm_question_ttft_median_s": statistics.median(s.ttft_s for s in warm if s.part == "question"),
            "warm_chat_ttft_median_s": statistics.median(s.ttft_s for s in warm if s.part == "chat"),
            "ttft_mean_s": statistics.fmean(s.ttft_s for s in of),
            "hit_rate": cached / prompt,
            "promised_exactly": sum(s.matched_tokens == s.cached_tokens for s in of),
        }
    cold = statistics.median(s.ttft_s for s in samples if s.cold)
    return {
        "machine": f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}",
        "shared_prompt_tokens": max(s.cached_tokens for s in samples if s.part == "question"),
        "arms": arms,
        "warm_share_of_cold": arms["affinity"]["warm_ttft_median_s"] / cold,
    }


def show(summary: dict[str, Any], console: Console) -> None:
    table = Table("", *ARMS, title=f"TTFT, {summary['shared_prompt_tokens']} shared tokens")
    rows = [
        ("requests", "requests", "{:d}"),
        ("cold requests", "cold_requests", "{:d}"),
        ("cold TTFT, median", "cold_ttft_median_s", "{:.3f} s"),
        ("warm TTFT, median", "warm_ttft_median_s", "{:.3f} s"),
        ("  questions", "warm_question_ttft_median_s", "{:.3f} s"),
        ("  chats", "warm_chat_ttft_median_s", "{:.3f} s"),
        ("mean TTFT of all", "ttft_mean_s", "{:.3f} s"),
        ("token hit rate", "hit_rate", "{:.3f}"),
        ("promises exact", "promised_exactly", "{:d}"),
    ]
    for label, key, form in rows:
        table.add_row(label, *(form.format(summary["arms"][arm][key]) for arm in ARMS))
    console.print(table)
    console.print(f"warm is {summary['warm_share_of_cold']:.0%} of cold under affinity")


def plot(samples: list[Sample], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
    styles = {"affinity": ("o", "#1565c0"), "round robin": ("s", "#c25e00")}
    for arm, (marker, colour) in styles.items():
        of = [s for s in samples if s.arm == arm]
        xs = range(1, len(of) + 1)
        axes.plot(xs, [s.ttft_s for s in of], color=colour, linewidth=1, alpha=0.5)
        for cold, face in ((False, colour), (True, "white")):
            points = [(x, s.ttft_s) for x, s in zip(xs, of, strict=True) if s.cold is cold]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                linestyle="none",
                marker=marker,
                markerfacecolor=face,
                color=colour,
                label=f"{arm}, {'cold' if cold else 'warm'}",
            )
    axes.axvline(len(QUESTIONS) + 0.5, color="grey", linewidth=0.8, linestyle="--")
    axes.text(len(QUESTIONS) + 0.8, axes.get_ylim()[1] * 0.95, "chats of six turns", color="grey", va="top")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("request, in order")
    axes.set_ylabel("time to first token, s")
    axes.set_title("20 questions over one system prompt, then three chats, on two workers")
    axes.legend(ncols=2)
    axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


@in_one_line()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="public URL of a running `make run`; without it one is started")
    parser.add_argument("--admin-url", help="its admin URL (default: the port after)")
    parser.add_argument("--model", default=MODEL, help="what to start: smollm2, tiny, a path, sim:<profile>")
    parser.add_argument(
        "--plot", type=asked.writable, help=f"[default: {OWN}/ttft.png, of {MODEL} and a fleet of its own]"
    )
    parser.add_argument("--json", type=asked.writable, help=f"[default: {OWN}/results.json, of the same]")
    parser.add_argument("--page", action="store_true", help=f"write both to {PAGE} instead")
    args = parser.parse_args(argv)
    usual = args.url is None and args.model == MODEL and (args.json, args.plot) == (None, None)
    if args.page and not usual:
        parser.error(f"--page is of {MODEL} and a fleet of its own, without --json and --plot")
    folder = PAGE if args.page else OWN
    result, picture = (folder / "results.json", folder / "ttft.png") if usual else (args.json, args.plot)
    console = Console()
    if args.url is None:
        console.print("starting a gateway and two workers …")
    with (
        running_fleet(args.url, args.admin_url, model=args.model) as fleet,
        Progress(console=console, transient=True) as progress,
    ):
        samples = measure(fleet, progress=progress)
    summary = summarise(samples)
    show(summary, console)
    if picture is not None:
        plot(samples, picture)
        console.print(f"plot in {picture}")
    if result is not None:
        document = {"summary": summary, "samples": [asdict(s) for s in samples]}
        write(result, json.dumps(document, indent=1) + "\n")
        console.print(f"figures in {result}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
