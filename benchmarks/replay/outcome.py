"""What happened to one request, and what a run adds up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Outcome:
    """Times in seconds of virtual time, counted from the run's begin."""

    prompt_tokens: int
    output_tokens: int
    arrived: float
    worker: int
    promised_tokens: int = 0
    cached_tokens: int = 0
    first_token: float | None = None
    finished: float | None = None

    @property
    def ttft(self) -> float:
        if self.first_token is None:
            raise ValueError("it never got a first token")
        return self.first_token - self.arrived

    @property
    def tpot(self) -> float:
        """Mean seconds between tokens; 0 for an answer of one token."""
        if self.first_token is None or self.finished is None:
            raise ValueError("it was never finished")
        return (self.finished - self.first_token) / max(1, self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Summary:
    requests: int
    """Served ones; all other figures but goodput are of them alone."""
    refused: int
    hit_rate: float
    """Cached prompt tokens over all prompt tokens."""
    balance: float
    """Prefilled tokens of the busiest worker over the mean's."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    goodput_rps: float
    """Requests a second that kept to both limits, over the time in which nine tenths of all arrived: the last
    turns of the longest session come when nobody else is there any more."""
    busy: float
    """Seconds in which engines computed over those of the fleet in which requests arrived: above 1 where much
    is left to do when the last one comes."""
    promise_error: float
    """Tokens by which promises and deliveries differ, over all prompt tokens."""
    preemptions: int


def summarise(
    outcomes: Sequence[Outcome],
    workers: int,
    *,
    slo_ttft_s: float,
    slo_tpot_s: float,
    busy_s: float,
    preemptions: int,
    refused: Sequence[float] = (),
) -> Summary:
    """`refused` are the times at which those came that were not served. Raises ValueError where there is
    nothing to sum up."""
    if not outcomes:
        raise ValueError("no request was replayed")
    prompt = sum(o.prompt_tokens for o in outcomes)
    prefilled = [0] * workers
    for o in outcomes:
        prefilled[o.worker] += o.prompt_tokens - o.cached_tokens
    ttfts = sorted(o.ttft for o in outcomes)
    tpots = sorted(o.tpot for o in outcomes)
    arrivals = sorted([*(o.arrived for o in outcomes), *refused])
    window, nearly = arrivals[-1] - arrivals[0], quantile(arrivals, 0.9)
    good = sum(1 for o in outcomes if o.ttft <= slo_ttft_s and o.tpot <= slo_tpot_s and o.arrived <= nearly)
    return Summary(
        requests=len(outcomes),
        refused=len(refused),
        hit_rate=sum(o.cached_tokens for o in outcomes) / prompt,
        balance=max(prefilled) * workers / max(1, sum(prefilled)),
        ttft_mean_s=sum(ttfts) / len(ttfts),
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p90_s=quantile(ttfts, 0.9),
        ttft_p99_s=quantile(ttfts, 0.99),
        tpot_p50_s=quantile(tpots, 0.5),
        tpot_p99_s=quantile(tpots, 0.99),
        goodput_rps=good / (nearly - arrivals[0]) if nearly > arrivals[0] else 0.0,
        busy=busy_s / (window * workers) if window else 0.0,
        promise_error=sum(abs(o.promised_tokens - o.cached_tokens) for o in outcomes) / prompt,
        preemptions=preemptions,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values: the smallest that at least `share` of them do not exceed."""
    return ordered[-1 - beyond(len(ordered), share)]


def beyond(count: int, share: float) -> int:
    """Of `count` sorted values, how many stand behind that one."""
    return min(count - 1, count - int(-(-count * share // 1)))
