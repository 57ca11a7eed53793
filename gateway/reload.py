"""New settings for a gateway that runs: at SIGHUP, or when a file with keys or certificates has changed.

All of it is read and checked before any of it counts. What can't change under way (addresses, Redis, sizes)
keeps its value and is named. The index, open requests and workers that nobody configured stay as they are.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from random import Random

from gateway.api.serve import ProxyService
from gateway.api.zeros import Zeros
from gateway.errors import ConfigError
from gateway.fleet.registry import Registry
from gateway.fleet.worker import WorkerSpec
from gateway.parts import policies, serve_options, worker_specs
from gateway.routing.observer import RoutingObserver
from gateway.routing.table import PolicyTable
from gateway.security import Security
from gateway.settings import Settings
from gateway.upstream.visitor import Visitor

log = logging.getLogger(__name__)

LIVE = frozenset(
    (
        "workers", "workers_file", "aliases", "worker_api_key_file",
        "policy", "policy_params", "model_policies", "shadow_policy",
        "tries", "connect_timeout", "first_byte_timeout", "whole_answer_timeout", "idle_timeout",
        "total_timeout", "max_body_bytes", "body_timeout", "retry_pause",
        "door", "door_fields", "door_headers", "door_answer_fields", "worker_header",
        "api_keys_file", "api_keys", "admin_token", "admin_token_file",
        "tls_cert", "tls_key", "tls_client_ca", "admin_tls_cert", "admin_tls_key", "admin_tls_client_ca",
        "log_level",
    )
)  # fmt: skip
"""Settings that a reload takes up."""


@dataclass(slots=True)
class Reloader:
    """Knows what was configured last, so that it touches nothing else."""

    settings: Settings
    specs: tuple[WorkerSpec, ...]
    registry: Registry
    service: ProxyService
    policies: PolicyTable
    security: Security
    visitor: Visitor
    random: Random
    observer: RoutingObserver
    zeros: Zeros
    _started_with: Settings = field(init=False)

    def __post_init__(self) -> None:
        self._started_with = self.settings

    def reload(self, new: Settings) -> list[str]:
        """Names of changed settings that wait for a restart. Raises ConfigError, and then nothing changed."""
        changed = _differences(self.settings, new)
        table = policies(new, self.random, self.observer)
        specs, options = worker_specs(new), serve_options(new)
        waiting = self.security.prepare(new)()
        self.service.reconfigure(options)
        self.zeros.door(options.door)
        self.visitor.authorization = options.worker_authorization
        # a policy that was switched through admin stays, unless the settings speak of policies anew
        if changed & {"policy", "policy_params", "model_policies", "shadow_policy"}:
            self.policies.replace(table)
        self.registry.set_aliases(new.aliases)
        self._exchange(specs)
        if "log_level" in changed:
            logging.getLogger().setLevel(new.log_level.upper())
        self.settings, self.specs = new, specs
        return sorted((_differences(self._started_with, new) - LIVE) | waiting)

    def _exchange(self, specs: tuple[WorkerSpec, ...]) -> None:
        before = {spec.id: spec for spec in self.specs}
        after = {spec.id: spec for spec in specs}
        for worker, spec in before.items():
            new = after.get(worker)
            if new is None:
                self.registry.remove(worker)
            elif new == replace(spec, weight=new.weight):
                if new.weight != spec.weight:
                    self.registry.set_weight(worker, new.weight)
            else:
                self.registry.remove(worker)
                self._add(new)
        for worker, spec in after.items():
            if worker not in before:
                self._add(spec)

    def _add(self, spec: WorkerSpec) -> None:
        try:
            self.registry.add(spec)
        except ConfigError as error:
            # somebody added it by hand before, or it fits into no pool: the others count all the same
            log.error("a worker was not taken up", extra={"worker": spec.id, "reason": error.message})


def _differences(one: Settings, other: Settings) -> set[str]:
    return {name for name in Settings.model_fields if getattr(one, name) != getattr(other, name)}
