"""How a source of workers (Kubernetes, DNS, Redis) is doing: kept by what asks it, read by metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from gateway.metrics import Gauge
from gateway.types import Clock


class Source:
    """`joined` and `unusable` count when asked: its workers in the fleet, and what it lists that can't be.
    `nobody` says why it lists none where it answers; None where it lists some."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        joined: Callable[[], int],
        unusable: Callable[[], int],
        nobody: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._name = name
        self._clock = clock
        self._joined = joined
        self._unusable = unusable
        self._nobody = nobody
        self._heard_at = clock()
        self._lists = 0
        self._watches = 0
        self._failures: Counter[str] = Counter(expired=0, failed=0)
        self.fault: str | None = "not listed yet"
        """Why the list may be old; None while it is current."""

    @property
    def reason(self) -> str | None:
        """Why nobody comes from there, as far as it is known."""
        return self.fault or self._nobody()

    def listed(self) -> None:
        self._lists += 1
        self.heard()

    def watched(self) -> None:
        """A watch begins."""
        self._watches += 1

    def heard(self) -> None:
        """The list is as the source has it now."""
        self._heard_at = self._clock()
        self.fault = None

    def failed(self, reason: str, *, expired: bool = False) -> None:
        """`expired`: it was asked for history that it no longer has."""
        self._failures["expired" if expired else "failed"] += 1
        self.fault = reason

    def broke(self, error: Exception) -> None:
        """What asks it failed, by a fault of its own."""
        self.failed(f"{type(error).__name__}: {error}")

    def gauges(self) -> Iterable[Gauge]:
        def of(name: str, text: str, value: float, *, counts: bool = False) -> Gauge:
            return Gauge(f"gateway_discovery_{name}", text, ("source",), [((self._name,), value)], counts)

        yield of("up", "1 while the source answers, also where it lists nobody.", float(self.fault is None))
        yield of(
            "age_seconds",
            "Since the source last said who is there; since the start where it never did.",
            self._clock() - self._heard_at,
        )
        yield of("workers", "Workers that the source lists and that joined.", self._joined())
        yield of("unusable", "What the source lists and can't be used; the log says why.", self._unusable())
        yield of("lists", "Whole lists that the source gave.", self._lists, counts=True)
        yield of("watches", "Watches begun; each ends by itself after minutes.", self._watches, counts=True)
        yield Gauge(
            "gateway_discovery_failures",
            "Times that the source could not be asked, or had forgotten what the watch needs (expired).",
            ("source", "kind"),
            [((self._name, kind), number) for kind, number in self._failures.items()],
            counts=True,
        )
