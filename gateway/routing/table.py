"""Which policy decides for which model. Switched at run time: the next decision takes the new one."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.routing.policy import Policy


class PolicyTable:
    def __init__(self, default: Policy, per_model: Mapping[str, Policy] | None = None) -> None:
        self._default = default
        self._per_model = dict(per_model or {})

    def of(self, model: str) -> Policy:
        return self._per_model.get(model, self._default)

    def set(self, policy: Policy, model: str | None = None) -> None:
        """For one model, or for all that have none of their own."""
        if model is None:
            self._default = policy
        else:
            self._per_model[model] = policy

    def reset(self, model: str) -> None:
        """The model follows the default again."""
        self._per_model.pop(model, None)

    def names(self) -> dict[str, str]:
        """Policy name by model; the default under ``*``."""
        return {"*": self._default.name, **{m: p.name for m, p in self._per_model.items()}}
