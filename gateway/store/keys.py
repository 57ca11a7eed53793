"""The names of all keys, in one place (docs/redis.md says what is in them).

What one script touches shares a hash tag, so that a cluster keeps it on one master: all of one worker.
"""

from __future__ import annotations

from gateway.types import WorkerId


class Keys:
    """`prefix` keeps apart fleets that share one Redis. Braces would be taken for a hash tag."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.replace("{", "(").replace("}", ")")

    # one worker's cache: written by its one writer

    def meta(self, worker: WorkerId) -> str:
        """Hash: epoch, number of the last batch, fencing token, position in the engine's events."""
        return self._of(worker, "meta")

    def held(self, worker: WorkerId) -> str:
        """Hash: block key (8 bytes) → key before it (8 bytes) and number of copies."""
        return self._of(worker, "held")

    def names(self, worker: WorkerId) -> str:
        """Hash: the engine's own name of a block → copies and our keys."""
        return self._of(worker, "names")

    def aside(self, worker: WorkerId) -> str:
        """Hash: what waits for its parent, and what lies in slower tiers."""
        return self._of(worker, "aside")

    def changes(self, worker: WorkerId) -> str:
        """Stream, bounded: the batches applied last."""
        return self._of(worker, "changes")

    def lease(self, worker: WorkerId) -> str:
        """String that expires: who writes this worker now."""
        return self._of(worker, "lease")

    def wish(self, worker: WorkerId) -> str:
        """String that expires: who asks to write this worker, and how many that one writes already."""
        return self._of(worker, "wish")

    def registration(self, worker: WorkerId) -> str:
        """String that expires: JSON of what an agent registered."""
        return self._of(worker, "registration")

    # the fleet

    def workers(self) -> str:
        """Sorted set: worker ids registered by agents, scored with the Unix time at which they run out."""
        return f"{self.prefix}:workers"

    def check(self) -> str:
        """String that expires at once: to set it shows that we may, and that there is room."""
        return f"{self.prefix}:check"

    def models(self) -> str:
        """Sorted set: names of models that were served, as JSON `[name, base model]`, scored with the Unix
        time of the last sight."""
        return f"{self.prefix}:models"

    def placements(self) -> str:
        """Channel (publish/subscribe): what replicas have in flight, and what their decisions promise."""
        return f"{self.prefix}:placements"

    def response(self, name: str) -> str:
        """String that expires: JSON `[worker, model, API key's id]` of a response that an engine keeps."""
        return f"{self.prefix}:response:{name}"

    # API keys

    def limits(self, key: str) -> tuple[str, str]:
        """Of an API key's id. Hash: levels of its buckets and when they were written. Sorted set: its open
        requests, scored with the Unix time at which they count as gone."""
        return f"{self.prefix}:{{key:{key}}}:limits", f"{self.prefix}:{{key:{key}}}:open"

    def _of(self, worker: WorkerId, what: str) -> str:
        tag = worker.replace("{", "(").replace("}", ")")
        return f"{self.prefix}:{{{tag}}}:{what}"
