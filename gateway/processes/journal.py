"""What was changed through the admin port and holds until it is changed again: a process that starts later
has to hear of it. One entry a thing, the last word about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from gateway.errors import ConfigError
from gateway.parts import worker_specs
from gateway.settings import Settings


class Reach(Enum):
    ONE = "one"
    """Any process can answer for all."""
    EACH = "each"
    """Each process has something to say, and nothing is changed."""
    ALL = "all"
    """Each process has to do it."""
    KEPT = "kept"
    """As ALL, and those that come later as well."""


REACH: Mapping[tuple[str, str], Reach] = {
    ("POST", "/admin/workers"): Reach.KEPT,
    ("DELETE", "/admin/workers"): Reach.KEPT,
    ("POST", "/admin/workers/drain"): Reach.KEPT,
    ("POST", "/admin/workers/resume"): Reach.KEPT,
    ("POST", "/admin/workers/weight"): Reach.KEPT,
    ("PUT", "/admin/policy"): Reach.KEPT,
    ("DELETE", "/admin/policy"): Reach.KEPT,
    ("DELETE", "/admin/index"): Reach.ALL,
    ("POST", "/admin/index/verify"): Reach.EACH,
    ("POST", "/admin/index/shared/verify"): Reach.EACH,
    ("POST", "/admin/explain"): Reach.ONE,
    ("POST", "/admin/plan"): Reach.ONE,
    ("POST", "/admin/doctor"): Reach.ONE,
}
"""Every admin route that is no mere reading."""


def reach(method: str, path: str) -> Reach:
    return REACH.get((method, path), Reach.ONE)


@dataclass(frozen=True, slots=True)
class Write:
    """A request that changed something."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes

    def settled(self, status: int) -> bool:
        """Whether a process that answers it with `status` has what it says, or never will."""
        if status == 404:
            # it may not have found that worker or model yet; a policy that it does not have need not go
            return (self.method, self.path) == ("DELETE", "/admin/policy")
        return status < 500


class Journal:
    def __init__(self) -> None:
        self._writes: dict[tuple[str, str], Write] = {}

    def entries(self) -> list[Write]:
        """In the order in which they have to be done."""
        return list(self._writes.values())

    def add(self, write: Write, answer: bytes) -> None:
        """A write that was done, and what was answered."""
        kind, name = _subject(write, answer)
        if kind == "member":
            self._drop(name)
        self._writes.pop((kind, name), None)
        self._writes[kind, name] = write

    def keep_known(self, workers: Collection[str]) -> None:
        """Words about a worker that is no longer there are not for another one of its name."""
        for kind, name in list(self._writes):
            if kind in ("drain", "weight") and name not in workers:
                del self._writes[kind, name]

    def reloaded(self, old: Settings, new: Settings) -> None:
        """What settings speak of anew is theirs again."""
        if any(getattr(old, n) != getattr(new, n) for n in ("policy", "policy_params", "model_policies")):
            for kind, name in list(self._writes):
                if kind == "policy":
                    del self._writes[kind, name]
        try:
            before, after = set(worker_specs(old)), set(worker_specs(new))
        except ConfigError:
            return  # a file that changed under our eyes
        for spec in before ^ after:
            self._drop(spec.id)
            self._writes.pop(("member", spec.id), None)

    def _drop(self, worker: str) -> None:
        for kind in ("drain", "weight"):
            self._writes.pop((kind, worker), None)


def _subject(write: Write, answer: bytes) -> tuple[str, str]:
    """(kind, name) of what it is about."""
    if write.path == "/admin/policy":
        model = write.query.get("model") if write.method == "DELETE" else _fields(write.body).get("model")
        return "policy", model or "*"
    if write.path == "/admin/workers":
        return "member", str(_fields(answer).get("id"))
    kind = "weight" if write.path == "/admin/workers/weight" else "drain"
    return kind, str(_fields(answer).get("id"))


def _fields(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(data)
    return fields
