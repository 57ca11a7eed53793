"""Illnesses of what the gateway knows: events, token counts, block sizes, replicas, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.diagnosis.dialects import VLLM, Dialect
from gateway.diagnosis.engine_meters import Meters, dialect_of
from gateway.diagnosis.facts import EventsFacts, Facts, Replica, WorkerRow
from gateway.diagnosis.finding import Evidence, Finding, Severity, percent
from gateway.fleet.pool import pool_unit

_SKEW_S = 2.0
"""Beyond what an HTTP date can tell and NTP leaves."""
_SETTLED_GAP = 0.1
_GAP_BLOCKS = 32


def workers_down(facts: Facts) -> Iterator[Finding]:
    for replica, row in _rows(facts):
        if row.state in ("ready", "draining") and row.refusal is None:
            continue
        alone = not any(
            other.state == "ready" and other.refusal is None and other.model in (row.model, None)
            for other in replica.after or ()
        )
        yield Finding(
            "worker-down",
            Severity.CRITICAL if alone else Severity.WARNING,
            row.id,
            "no request is sent to this worker",
            (
                Evidence("state", row.state),
                Evidence("reason", row.refusal or row.reason or "none given"),
                Evidence("other workers for its model", "none" if alone else "yes"),
            ),
            row.refusal or row.reason or "its engine has not answered yet",
            ("read the engine's log", "take it out of the fleet: DELETE /admin/workers"),
            0.9,
        )


def worker_restarted(facts: Facts) -> Iterator[Finding]:
    """Its event history began again: another process of the engine, with an empty cache."""
    told: set[str] = set()
    for replica in facts.replicas:
        began = replica.series.increase_by("gateway_event_epochs_total", "worker", reason="restarted")
        rows = {row.id: row for row in replica.after or ()}
        for worker, times in sorted(began.items()):
            if not times or worker in told:
                continue
            told.add(worker)
            held = rows[worker].indexed_blocks if worker in rows else None
            yield Finding(
                "worker-restarted",
                Severity.WARNING,
                worker,
                "the engine was restarted, and all that it had cached is gone",
                (
                    Evidence("restarts in the window", times),
                    *(() if held is None else (Evidence("blocks it holds again", held),)),
                    Evidence("replica", replica.name),
                ),
                "its KV events began again from the first: it crashed, was killed or was rolled out",
                (
                    "read the log of the process before this one, and its exit status (137: out of memory)",
                    "roll engines out one at a time, each drained first, so that the others warm up",
                ),
                0.9,
            )


def events_off(facts: Facts) -> Iterator[Finding]:
    for replica, row in _rows(facts):
        if row.state != "ready" or row.events is not None:
            continue
        yield Finding(
            "events-off",
            Severity.WARNING,
            row.id,
            "what this worker holds is a guess: its engine tells nobody",
            (
                Evidence("KV events", "not published"),
                Evidence("blocks the index guesses there", row.indexed_blocks),
                Evidence("replica", replica.name),
            ),
            "the engine publishes no KV events, or the gateway was not told where",
            (
                f"start the engine with {_dialect(facts, row.url).events_flag}",
                "say where: --worker URL,events=tcp://HOST:5557,replay=tcp://HOST:5558",
            ),
            0.95,
        )


def events_silent(facts: Facts) -> Iterator[Finding]:
    """One finding a worker, of the replica that is worst off: one follows its engine, the others mirror."""
    worst: dict[str, tuple[Severity, Replica, EventsFacts]] = {}
    for replica in facts.replicas:
        for row in replica.after or ():
            if row.state != "ready" or row.events is None:
                continue
            severity = _deafness(row.events)
            if severity is not None and (row.id not in worst or severity > worst[row.id][0]):
                worst[row.id] = severity, replica, row.events
    for worker, (severity, replica, events) in worst.items():
        yield Finding(
            "events-silent",
            severity,
            worker,
            "the engine's KV events do not arrive: routing knows too little of this worker",
            (
                Evidence("state of the follower", events.state),
                Evidence("events address", events.endpoint or "unknown"),
                Evidence("reason", events.reason or "none given"),
                Evidence("gaps", events.gaps),
                Evidence("replica", replica.name),
            ),
            {
                "mirroring": "another replica hears them, and what it learns does not come through Redis",
                "silent": "requests fill blocks and no event comes: wrong port, a firewall, another topic, "
                "or a publisher that was never enabled",
                "unsupported": "events arrive in a form that can't be indexed",
            }.get(events.state, "nobody listens at the events address"),
            (
                ("look at Redis, and at the log of the replica that writes (GET /admin/index)",)
                if events.state == "mirroring"
                else (
                    "compare the worker's events address with the engine's --kv-events-config",
                    "open the port between gateway and engine",
                )
            ),
            0.9,
        )


def _deafness(events: EventsFacts) -> Severity | None:
    """How bad it is that a replica does not hear them; None where it does, itself or through a mirror."""
    if events.state == "following" or (events.state, events.mirror) == ("mirroring", "following"):
        return None
    return Severity.WARNING if events.state in ("connecting", "mirroring") else Severity.CRITICAL


def token_details_off(facts: Facts) -> Iterator[Finding]:
    for replica in facts.replicas:
        done = replica.series.increase_by("gateway_requests_total", "worker", outcome="ok")
        generated = replica.series.increase_by("gateway_completion_tokens_total", "worker")
        reported = replica.series.increase_by("gateway_reported_prompt_tokens_total", "worker")
        for worker, requests in sorted(done.items()):
            if not worker or requests < 3 or not generated.get(worker) or reported.get(worker):
                continue
            yield Finding(
                "token-details-off",
                Severity.WARNING,
                worker,
                "the engine does not say what it served from cache: promises can't be checked",
                (
                    Evidence("answers", requests),
                    Evidence("tokens generated", generated[worker]),
                    Evidence("answers with cached_tokens", 0.0),
                ),
                "usage.prompt_tokens_details is switched off in the engine",
                (f"start the engine with {_dialect(facts, worker.partition('#')[0]).details_flag}",),
                0.95,
            )


def tokenizer_mismatch(facts: Facts) -> Iterator[Finding]:
    for replica in facts.replicas:
        wrong = replica.series.increase_by("gateway_tokenizer_checks_total", "model", result="mismatch")
        right = replica.series.increase_by("gateway_tokenizer_checks_total", "model", result="match")
        for model, count in sorted(wrong.items()):
            if not count:
                continue
            share = count / (count + right.get(model, 0.0))
            yield Finding(
                "tokenizer-mismatch",
                Severity.CRITICAL if share > 0.2 else Severity.WARNING,
                model,
                "the gateway counts other prompt tokens than the engine: matches are a lie",
                (
                    Evidence("answers that disagree", count),
                    Evidence("share of those checked", percent(share)),
                    Evidence("replica", replica.name),
                ),
                "the tokenizer or chat template here is not the engine's: another revision, another template",
                (
                    "point --tokenizer MODEL=PATH at the files that the engine loads, template included",
                    "or let the engine tokenise: --tokenizer MODEL=engine",
                ),
                0.95,
            )


def block_sizes(facts: Facts) -> Iterator[Finding]:
    """Engines of one model cut prompts into blocks of unlike sizes."""
    sizes: dict[str, dict[str, int]] = {}
    for engine in facts.engines:
        for size in Meters(engine.series).block_sizes:
            sizes.setdefault(engine.model or "", {})[engine.url] = size
    named = {row.url: row.model for _, row in _rows(facts) if row.model}
    pools: dict[str, dict[str, int]] = {}
    for model, of_engines in sizes.items():
        for url, blocks in of_engines.items():
            pools.setdefault(named.get(url) or model, {})[url] = blocks
    for model, pool in sorted(pools.items()):
        if len(set(pool.values())) < 2:
            continue
        try:
            unit = pool_unit(pool.values())
        except ValueError:
            unit = 0
        shown = ", ".join(f"{url}: {size}" for url, size in sorted(pool.items()))
        yield Finding(
            "block-size-mismatch",
            Severity.NOTE if unit else Severity.CRITICAL,
            model,
            "engines of one model use blocks of unlike sizes",
            (Evidence("block sizes", shown), Evidence("common unit", float(unit) if unit else "none")),
            "they were started with different --block-size (SGLang: --page-size); "
            + (
                "a larger block is credited only whole, so its worker is promised less"
                if unit
                else "their block keys can't be compared, so the odd one out gets no requests"
            ),
            ("start all engines of a model with one --block-size or --page-size (16 is vLLM's default)",),
            1.0,
        )


def promises_broken(facts: Facts) -> Iterator[Finding]:
    for replica, row in _rows(facts):
        if not row.promise.degraded or row.events is None:  # without events nothing was promised, but guessed
            continue
        yield Finding(
            "promises-broken",
            Severity.CRITICAL,
            row.id,
            "the engine serves less from cache than its events promised",
            (
                Evidence("promises", row.promise.promises),
                Evidence("tokens promised", row.promise.promised_tokens),
                Evidence("tokens missing", row.promise.short_tokens),
                Evidence("drift", percent(row.promise.drift)),
                Evidence("replica", replica.name),
            ),
            "its cache was reset without an event, events were lost, or adapters, salts or media are keyed "
            "another way there",
            ("look for gaps and new epochs in gateway_event_*", "restart the engine's publisher"),
            0.8,
        )


def stale_replica(facts: Facts) -> Iterator[Finding]:
    """Replicas that hold different knowledge of one worker, when the window begins and when it ends."""
    known: dict[str, list[tuple[str, int, int]]] = {}
    for replica in facts.replicas:
        before = {row.id: row.indexed_blocks for row in replica.before or ()}
        for row in replica.after or ():
            known.setdefault(row.id, []).append((replica.name, before.get(row.id, 0), row.indexed_blocks))
    for worker, seen in sorted(known.items()):
        most = max(seen, key=lambda one: one[2])
        for name, began, ended in seen:
            behind_now = most[2] - ended
            behind_then = most[1] - began
            if min(behind_now, behind_then) < max(_GAP_BLOCKS, _SETTLED_GAP * most[2]):
                continue
            yield Finding(
                "stale-replica",
                Severity.WARNING,
                name,
                f"this replica knows less of {worker} than another does",
                (
                    Evidence("blocks it knows there", ended),
                    Evidence(f"blocks {most[0]} knows there", most[2]),
                    Evidence("missing when the window began", behind_then),
                ),
                "its follower or its mirror has stopped, or it started after the history it would need was "
                "gone and shares none through Redis",
                (
                    "look at the worker's events in that replica's GET /admin/workers",
                    "give all replicas one --redis-url, so that a new one loads what the others know",
                ),
                0.8,
            )


def redis_degraded(facts: Facts) -> Iterator[Finding]:
    for replica in facts.replicas:
        up = replica.series.values("gateway_sharing_up")
        if not up or min(up) >= 1.0:
            continue
        share = sum(up) / len(up)
        yield Finding(
            "redis-degraded",
            Severity.CRITICAL if up[-1] < 1.0 else Severity.WARNING,
            replica.name,
            "this replica is cut off from Redis: it routes by what it knows alone",
            (
                Evidence("time connected", percent(share)),
                Evidence("connected now", "yes" if up[-1] >= 1.0 else "no"),
                Evidence("peers heard", replica.series.last("gateway_peers") or 0.0),
                Evidence(
                    "placements that peers were never told",
                    replica.series.increase("gateway_sharing_placements_dropped_total"),
                ),
            ),
            "Redis is down, slow, failing over, or refuses the credentials",
            (
                "check Redis itself; requests keep flowing meanwhile",
                'look for "Redis is degraded" in the replica\'s log: its kind and reason say what is wrong',
            ),
            0.9,
        )


def clock_skew(facts: Facts) -> Iterator[Finding]:
    offsets: Mapping[str, float | None] = {
        **{one.name: one.clock_offset_s for one in facts.replicas},
        **{one.url: one.clock_offset_s for one in facts.engines},
    }
    for name, offset in offsets.items():
        if offset is None or abs(offset) < _SKEW_S:
            continue
        yield Finding(
            "clock-skew",
            Severity.WARNING,
            name,
            "its clock differs from this machine's: lags and rates across machines are wrong",
            (Evidence("ahead by" if offset > 0 else "behind by", abs(offset), "s at least"),),
            "time is not synchronised there (or here)",
            (
                "run chrony or another NTP client on both",
                "until then, read gateway_event_lag_seconds with care",
            ),
            0.9,
        )


def _dialect(facts: Facts, url: str) -> Dialect:
    return next((dialect_of(engine.series) for engine in facts.engines if engine.url == url), VLLM)


def _rows(facts: Facts) -> Iterator[tuple[Replica, WorkerRow]]:
    """Each worker once: as the first replica that knows it sees it."""
    seen: set[str] = set()
    for replica in facts.replicas:
        for row in replica.after or ():
            if row.id not in seen:
                seen.add(row.id)
                yield replica, row
