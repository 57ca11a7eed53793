"""The whole gateway in the test's own process: real registry, router, guards, queue and metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from gateway.app import App, build
from gateway.settings import Settings
from tests.gateway.api.rig import http, running


@dataclass
class Whole:
    app: App
    url: str
    port: int

    def outcomes(self) -> dict[str, int]:
        """Requests by outcome, as exported."""
        return self._counted("gateway_requests_total", "outcome")

    def retries(self) -> dict[str, int]:
        """Tries that another worker made good, by their outcome."""
        return self._counted("gateway_retries_total", "reason")

    def decided(self) -> dict[str, int]:
        """Routing decisions by reason."""
        return self._counted("gateway_decisions_total", "reason")

    def _counted(self, metric: str, label: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for family in self.app.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == metric and sample.value:
                    name = sample.labels[label]
                    found[name] = found.get(name, 0) + int(sample.value)
        return found

    async def records(self, count: int) -> None:
        """Until so many requests have ended: a client sees its last byte a moment before that."""
        async with asyncio.timeout(20):
            while sum(self.outcomes().values()) < count:  # noqa: ASYNC110 - metrics tell nobody
                await asyncio.sleep(0.005)

    def assert_idle(self) -> None:
        for worker in self.app.view.workers():
            load = worker.load
            assert (load.requests, load.waiting_tokens, load.decoding_tokens) == (0, 0, 0), worker.id

    def open_breakers(self) -> list[str]:
        return [w.id for w in self.app.view.workers() if w.refusal and "breaker" in w.refusal]


@contextlib.asynccontextmanager
async def whole(*workers: str, ready: int | None = None, **settings: Any) -> AsyncIterator[Whole]:
    """Serves when `ready` of the workers are (all, where not given). At the end nothing is in flight."""
    given = {
        "health_interval": 60.0, "access_log": False, "retry_pause": 0.001, "slow_start": 0.0, "seed": 1,
        "tokenizers": {"m": "bytes"}, **settings,
    }  # fmt: skip
    app = build(Settings(workers=workers, **given))
    wanted = len(workers) if ready is None else ready
    async with app:
        async with asyncio.timeout(30):
            while sum(w.state == "ready" for w in app.view.workers()) < wanted:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        async with running(app.public) as port:
            made = Whole(app, f"http://127.0.0.1:{port}", port)
            async with http() as client, asyncio.timeout(30):
                while wanted and (await client.get(made.url + "/ready")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            yield made
            made.assert_idle()
