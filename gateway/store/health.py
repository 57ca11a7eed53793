"""Is Redis well? After a failure, not every answer shows it: reads go on where writes fail."""

from __future__ import annotations

QUIET_S = 2.0
"""Without a failure, beyond the time that the failed command had: then what failed counts as over."""
LONGEST_S = 2.0
"""A deadline counts for so much at the most: reads that wait for news have long ones, and end at once where
their server has gone."""
MOST_SUBJECTS = 1000

_ABOUT_WRITES = frozenset({"readonly", "out_of_memory", "forbidden"})
_NO_ANSWERS = frozenset({"unavailable", "timeout", "auth", "certificate", "wrong_url"})
_OTHERS = "*"


class Health:
    """Told of every command's end; `now` in seconds.

    What fails because Redis takes no writes is over when a write has succeeded: it goes on answering reads.
    Where Redis has parts (a cluster's masters, the keys that a user may not use), another part's answer says
    nothing: the same part must answer, or nothing fail for a while.
    """

    def __init__(self, *, parts: bool) -> None:
        self.up = False
        self.answers = False
        """Whether the last command got an answer, be it an error."""
        self.since: float | None = None
        """When it ceased to be up; None where it never was, or is."""
        self.denied = False
        """Whether the user lacks a right: over when whoever looked says so, whatever else succeeds."""
        self._parts = parts
        self._failed: dict[str, bool] = {}
        """By part, '' where there are none: whether only a write can show that it is over."""
        self._doubt_until = 0.0

    def failed(self, kind: str, part: str, limit: float, now: float) -> None:
        """`part`: a key, or its hash tag. `limit`: the command's deadline, in seconds."""
        self.answers = kind not in _NO_ANSWERS
        if kind == "refused":
            return  # it answers, though not as wanted
        if self.up:
            self.up, self.since = False, now
        writes = kind in _ABOUT_WRITES
        subject = part if self._parts or kind == "forbidden" else ""
        if subject not in self._failed and len(self._failed) >= MOST_SUBJECTS:
            subject = _OTHERS
        self._failed[subject] = self._failed.get(subject, False) or writes
        self._doubt_until = max(self._doubt_until, now + min(limit, LONGEST_S) + QUIET_S)

    def succeeded(self, part: str, writes: bool, now: float) -> bool:
        """Whether it is up again by that. `writes`: Redis would have refused it if it took no writes now."""
        self.answers = True
        if self.up:
            return False
        for subject in (part, ""):
            if writes or not self._failed.get(subject, False):
                self._failed.pop(subject, None)
        if self._failed and (now < self._doubt_until or (any(self._failed.values()) and not writes)):
            return False
        self._failed.clear()
        self._doubt_until = 0.0
        if self.denied:
            return False
        self.up = True
        return True
