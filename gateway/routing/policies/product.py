"""Product form: new prefill tokens × batch size, both as they would be with the request there.

    score = (waiting + uncached) × (active requests + 1)

Source: Zhang et al., "Simple is Better: Multiplication May Be All You Need for LLM Request Scheduling"
(LMetric), arXiv 2603.15202. It has no parameters. At least one token counts as uncached, so that a full match
on an idle worker does not tie with one on a crowded worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.fleet.load import WorkerLoad
from gateway.routing.policy import RequestShape


@dataclass(slots=True)
class Product:
    name: str = "product"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        return [
            float(
                (load.all_waiting_tokens + max(1, request.prompt_tokens - matched)) * (load.all_requests + 1)
            )
            for load, matched in zip(loads, matched_tokens, strict=True)
        ]
