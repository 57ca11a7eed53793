"""Which policy decides for which model. Switched at run time: the next decision takes the new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gateway.fleet.load import WorkerLoad
from gateway.routing.policy import Committing, Policy, RequestShape
from gateway.routing.shadow import Shadow

EVERY_MODEL = "*"
"""Stands for all models that have no policy of their own."""
Chosen: TypeAlias = Callable[[RequestShape, Sequence[WorkerLoad], Sequence[int], int], None]


@dataclass(frozen=True, slots=True)
class Slot:
    policy: Policy
    chosen: Chosen | None
    """Whom to tell of a choice; None where the policy does not want to know. Looked up once, for it is
    asked on every decision."""
    params: Mapping[str, Any]
    """As they were given to it; all others are its defaults."""


class PolicyTable:
    def __init__(
        self,
        default: Policy,
        per_model: Mapping[str, Policy] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """`params` are those that `default` was made with."""
        self._default = _slot(default, params)
        self._per_model = {model: _slot(policy) for model, policy in (per_model or {}).items()}

    def slot(self, model: str) -> Slot:
        return self._per_model.get(model, self._default)

    def of(self, model: str) -> Policy:
        return self.slot(model).policy

    def set(self, policy: Policy, model: str | None = None, params: Mapping[str, Any] | None = None) -> None:
        """For one model, or for all that have none of their own; `params` are those it was made with."""
        if model is None:
            self._default = _slot(policy, params)
        else:
            self._per_model[model] = _slot(policy, params)

    def replace(self, other: PolicyTable) -> None:
        """All of it, by what `other` has."""
        self._default, self._per_model = other._default, dict(other._per_model)

    def reset(self, model: str) -> None:
        """The model follows the default again."""
        self._per_model.pop(model, None)

    def names(self) -> dict[str, str]:
        """Policy name by model; the default under ``*``."""
        return {model: slot.policy.name for model, slot in self._slots()}

    def shadows(self) -> dict[str, str]:
        """Who watches, by model, where somebody does."""
        policies = ((model, slot.policy) for model, slot in self._slots())
        return {model: policy.watching.name for model, policy in policies if isinstance(policy, Shadow)}

    def params(self) -> dict[str, Mapping[str, Any]]:
        """What was given to the policies, by model, where something was."""
        return {model: slot.params for model, slot in self._slots() if slot.params}

    def _slots(self) -> list[tuple[str, Slot]]:
        return [(EVERY_MODEL, self._default), *self._per_model.items()]


def _slot(policy: Policy, params: Mapping[str, Any] | None = None) -> Slot:
    return Slot(policy, policy.chosen if isinstance(policy, Committing) else None, dict(params or {}))
