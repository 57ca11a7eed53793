"""One follower per worker that publishes events, as its metrics show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import zmq.asyncio

from gateway.api.recorder import EventMetrics
from gateway.events.followers import Followers
from gateway.events.ports import IndexSink
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec
from gateway.index.prefix import PrefixIndex
from gateway.metrics import Metrics

pytestmark = pytest.mark.anyio


async def test_the_counters_of_a_followed_worker_begin_at_zero(free_port: Callable[[], int]) -> None:
    metrics, context = Metrics(), zmq.asyncio.Context()
    followers = Followers(
        IndexSink(PrefixIndex()), EventMetrics(metrics), unit_of=lambda _: 16, context=context
    )
    info = EngineInfo(model="m", block_size=16)
    events = f"tcp://127.0.0.1:{free_port()}"
    followers.added(Worker(WorkerSpec("http://follows:1", events=events), info=info))
    followers.added(Worker(WorkerSpec("http://mute:1"), info=info))
    await followers.close()
    context.term()
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if "worker" in sample.labels and sample.name.endswith("_total")
    }
    assert shown == {
        ("gateway_event_batches_total", "http://follows:1"): 0,
        ("gateway_event_blocks_total", "http://follows:1"): 0,
        ("gateway_event_gaps_total", "http://follows:1"): 0,
        ("gateway_event_replays_failed_total", "http://follows:1"): 0,
        ("gateway_events_malformed_total", "http://follows:1"): 0,
        ("gateway_event_epochs_total", "http://follows:1", "restarted"): 0,
        ("gateway_event_epochs_total", "http://follows:1", "lost"): 0,
    }
