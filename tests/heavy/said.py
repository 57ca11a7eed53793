"""What a gateway says in its log about sharing, and when. Reading it costs the gateway nothing, which asking
for metrics would, and what is measured is when it happened, not when somebody looked."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

SPEAKS = {
    "load is shared with other replicas": True,
    "load is not shared: other replicas route without this one's load and placements": False,
}
HEARS = {"peers are heard": True, "peers are not heard: their load and placements are unknown here": False}
COMES, GOES = "a replica is heard; its load counts", "a replica fell silent; its load is dropped"
WRITES = "this replica writes a worker's blocks"
AGENT_SILENT = "a worker's agent is silent; its engine still answers"
REFRAINS = (
    "another replica writes this worker now",
    "a worker is handed over to a replica with less to do",
)


@dataclass
class Said:
    """Times are Unix times, of the gateway's own clock."""

    path: Path
    speaks: bool = False
    hears: bool = False
    peers: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    """Workers."""
    changed_at: float = 0.0
    """When one of those was last another than before."""
    dropped_at: float = 0.0
    """When a peer's load was dropped last."""
    lines: list[tuple[float, str, dict[str, object]]] = field(default_factory=list)
    _read: int = 0

    def look(self) -> Said:
        """Takes in what was written since."""
        with self.path.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if line.startswith(b"{"):
                    self._take(json.loads(line))
        return self

    def shares(self, peers: int = 1) -> bool:
        """It speaks and hears so many others."""
        self.look()
        return self.speaks and self.hears and len(self.peers) == peers

    def cut_off(self) -> bool:
        self.look()
        return not (self.speaks and self.hears)

    def told(self, message: str, since: float, **fields: str) -> list[float]:
        """When it said that since, with these fields."""
        wanted = fields.items()
        return [
            at for at, said, line in self.look().lines
            if said == message and at >= since and wanted <= line.items()
        ]  # fmt: skip

    def _take(self, line: dict[str, object]) -> None:
        at, message = _unix(str(line["time"])), str(line["message"])
        self.lines.append((at, message, line))
        before = (self.speaks, self.hears, len(self.peers))
        self.speaks = SPEAKS.get(message, self.speaks)
        self.hears = HEARS.get(message, self.hears)
        if message == COMES:
            self.peers.add(str(line["replica"]))
        elif message == GOES:
            self.peers.discard(str(line["replica"]))
            self.dropped_at = at
        elif message == WRITES:
            self.writes.add(str(line["worker"]))
        elif message in REFRAINS:
            self.writes.discard(str(line["worker"]))
        if (self.speaks, self.hears, len(self.peers)) != before:
            # what had been lost is said to be back once that has lasted
            self.changed_at = at - float(str(line.get("for_s", 0)))


def _unix(text: str) -> float:
    whole, _, thousandths = text.partition(",")
    return time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + int(thousandths) / 1000
