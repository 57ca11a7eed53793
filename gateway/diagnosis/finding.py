"""What a diagnosis says: one illness, on one subject, with its figures."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec

RUNBOOKS = "docs/runbooks"


class Severity(IntEnum):
    """How urgent; also its order in a report."""

    NOTE = 1
    """Worth knowing; nothing is lost yet."""
    WARNING = 2
    """Costs latency, hit rate or memory."""
    CRITICAL = 3
    """Requests fail or queue, or routing is blind."""


class Evidence(msgspec.Struct, frozen=True):
    """One figure of the window that was looked at."""

    name: str
    value: float | str
    unit: str = ""

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else figure(self.value)
        return f"{self.name}: {value}" + (f" {self.unit}" if self.unit else "")


class Finding(msgspec.Struct, frozen=True):
    id: str
    """Names the illness, and its runbook."""
    severity: Severity
    subject: str
    """The worker, model or replica that has it."""
    symptom: str
    evidence: tuple[Evidence, ...]
    cause: str
    remedy: tuple[str, ...]
    """Flags and actions, the best one first."""
    confidence: float
    """0…1: how sure the cause is, given these figures alone."""

    @property
    def runbook(self) -> str:
        return f"{RUNBOOKS}/{self.id}.md"

    def as_dict(self) -> dict[str, object]:
        shown: dict[str, object] = msgspec.to_builtins(self)
        return {**shown, "severity": self.severity.name.lower(), "runbook": self.runbook}


def exit_status(findings: Iterable[Finding]) -> int:
    """0 healthy (notes included), 1 warnings, 3 critical. 2 is kept for a look that could not be taken."""
    worst = max((finding.severity for finding in findings), default=Severity.NOTE)
    return {Severity.NOTE: 0, Severity.WARNING: 1, Severity.CRITICAL: 3}[worst]


def figure(value: float) -> str:
    """Three digits that matter; whole numbers whole."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
