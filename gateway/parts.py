"""From settings to the plain values that parts are made of, at the start and at each reload."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

from gateway import __version__
from gateway.api.door import ANSWER_FIELDS, BODY_FIELDS, HEADERS, Door
from gateway.api.retry import RetryPolicy
from gateway.api.serve import ServeOptions
from gateway.api.tracing import Tracer
from gateway.errors import ConfigError, MissingExtra
from gateway.fleet.breaker import BreakerLimits
from gateway.fleet.discovery.build import Discovery, dns, kubernetes
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.guards import Guards
from gateway.fleet.health import HealthLimits
from gateway.fleet.outliers import OutlierLimits
from gateway.fleet.registry import Registry
from gateway.fleet.spec import parse_worker, read_workers_file, refuse_doubles
from gateway.fleet.worker import WorkerSpec
from gateway.lasting import Lasting
from gateway.prompt.files import has_tokenizer_files
from gateway.routing.admission import Admission, QueueLimits
from gateway.routing.encoders import FROM_BYTES, FROM_ENGINE
from gateway.routing.observer import RoutingObserver
from gateway.routing.policy import Policy
from gateway.routing.registry import make_policy
from gateway.routing.shadow import watched
from gateway.routing.table import EVERY_MODEL, PolicyTable
from gateway.security import asks_for_keys, worker_authorization
from gateway.settings import Settings
from gateway.types import Clock
from gateway.upstream.timeouts import Timeouts


def worker_specs(settings: Settings) -> tuple[WorkerSpec, ...]:
    specs = [parse_worker(text) for text in settings.workers]
    if settings.workers_file is not None:
        specs += read_workers_file(settings.workers_file)
    refuse_doubles(specs)
    return tuple(specs)


def discovery(
    settings: Settings, registry: Registry, clock: Clock, random: Random, lasting: Lasting
) -> Discovery | None:
    """What finds workers outside of Redis; None where nothing does. Raises ConfigError."""
    rules = PortRules(settings.discovery_port, settings.discovery_events_port, settings.discovery_replay_port)
    if settings.discovery == "kubernetes":
        return kubernetes(
            registry,
            resource=settings.kubernetes_resource,
            selector=settings.kubernetes_selector,
            namespace=settings.kubernetes_namespace,
            kubeconfig=settings.kubeconfig,
            rules=rules,
            clock=clock,
            random=random.random,
            lasting=lasting,
        )
    if settings.discovery == "dns":
        return dns(
            registry,
            names=settings.dns_names,
            server=settings.dns_server,
            interval_s=settings.dns_interval,
            rules=rules,
            clock=clock,
            random=random.random,
            lasting=lasting,
        )
    return None


def make_tracer(settings: Settings) -> Tracer | None:
    """None where nobody collects spans. Raises ConfigError where spans are wanted and can't be made."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from gateway.api.otel import OtelTracer  # an extra, and its imports take a second
    except ImportError as error:
        raise MissingExtra("otlp_endpoint", "otel") from error
    return OtelTracer(
        settings.otlp_endpoint, ratio=settings.trace_ratio, version=__version__, now_ns=time.time_ns
    )


def tokenizers(settings: Settings) -> dict[str, str]:
    """Raises ConfigError for a path with no tokenizer in it, now rather than at the first request."""
    for model, source in settings.tokenizers.items():
        if source not in (FROM_ENGINE, FROM_BYTES) and not has_tokenizer_files(Path(source)):
            raise ConfigError(
                f"tokenizer of {model!r}: {source} has no tokenizer.json and is no GGUF file; "
                f"or say `{FROM_ENGINE}` or `{FROM_BYTES}`"
            )
    return settings.tokenizers


def policies(settings: Settings, random: Random, observer: RoutingObserver) -> PolicyTable:
    def make(model: str, name: str, params: dict[str, Any] | None = None) -> Policy:
        acting = make_policy(name, params, random=random)
        if not settings.shadow_policy:
            return acting
        return watched(acting, make_policy(settings.shadow_policy, random=random), model, observer)

    params = {k: _number(v) for k, v in settings.policy_params.items()}
    default = make(EVERY_MODEL, settings.policy, params)
    per_model = {model: make(model, name) for model, name in settings.model_policies.items()}
    return PolicyTable(default, per_model, params)


def _number(value: object) -> object:
    """Flags and variables carry text; what is no number is refused by the policy, by name."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def door(settings: Settings) -> Door:
    """Raises ConfigError for a pattern that the door does not know."""
    if settings.door == "off":
        return Door.open()

    def given(names: tuple[str, ...] | None, standard: tuple[str, ...]) -> tuple[str, ...]:
        return standard if names is None else names

    headers = given(settings.door_headers, HEADERS)
    for name in headers:
        if not name.strip("*") or "*" in name[:-1]:
            raise ConfigError(f"door_headers: {name!r} may only end in *, and be more than that")
    return Door(
        given(settings.door_fields, BODY_FIELDS),
        headers,
        given(settings.door_answer_fields, ANSWER_FIELDS),
        refuse=settings.door == "refuse",
    )


def guards(settings: Settings) -> Guards:
    return Guards(
        breaker=BreakerLimits(failures=settings.breaker_failures, open_s=settings.breaker_rest),
        outliers=OutlierLimits(
            failure_ratio=settings.eject_ratio,
            eject_s=settings.eject_rest,
            max_fraction=settings.eject_most,
        ),
        health=health(settings),
    )


def health(settings: Settings) -> HealthLimits:
    return HealthLimits(interval_s=settings.health_interval, slow_start_s=settings.slow_start)


def admission(settings: Settings) -> Admission:
    return Admission(QueueLimits(max_items=settings.queue_size, max_wait_s=settings.queue_wait))


def declared(settings: Settings) -> tuple[str, ...]:
    """Models that exist whoever serves them: those that the settings speak of."""
    return tuple(dict.fromkeys((*settings.models, *settings.tokenizers, *settings.model_policies)))


def serve_options(settings: Settings) -> ServeOptions:
    return ServeOptions(
        timeouts=Timeouts(
            connect=settings.connect_timeout,
            first_byte=settings.first_byte_timeout,
            whole_answer=settings.whole_answer_timeout,
            idle=settings.idle_timeout,
            total=settings.total_timeout,
        ),
        retry=RetryPolicy(tries=settings.tries, base=settings.retry_pause),
        door=door(settings),
        worker_header=settings.worker_header,
        max_body=settings.max_body_bytes,
        body_timeout=settings.body_timeout,
        forward_authorization=not asks_for_keys(settings),
        worker_authorization=worker_authorization(settings),
    )
