"""Affinity for prompts with images and sounds, whose tokens nobody but the engine can know.

What an engine makes of a medium (how many tokens, under which identity) depends on its processor, so nothing
behind a prompt's first medium is ever promised. But the same media in the same place, as in the next turn of
a chat, are worth going back for: this remembers which worker prefilled them, and how long that prompt was by
the engine's own count. It moves scores, no promise.

A medium counts by its bytes as the request has them (a data URL, or the address of a remote one), and by all
that stands before it. Known by this replica alone; where it knows nothing, all replicas lean to the same
worker, by rendezvous hashing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.prompt.base import PromptRequest
from gateway.prompt.content import has_media, is_media
from gateway.types import BlockKey, Clock, WorkerId

Marks = tuple[int, ...]
"""One for each medium of a prompt, in order: a hash of it and of all before it."""

GUESSED_TOKENS = 500
"""Of a medium, until an engine has counted a prompt with it: what common image models make of one."""
KEPT_S = 600.0
MOST = 50_000


def media_marks(request: PromptRequest, root: BlockKey) -> Marks:
    """`root`: of the prompt's block keys, since other models, adapters and salts share nothing."""
    if not has_media(request.messages or ()):
        return ()
    chain, marks = int(root), []
    try:
        chain = _after(chain, request.template_args)
        for message in request.messages or ():
            content = message.get("content")
            chain = _after(chain, {**message, "content": None})
            for part in content if isinstance(content, list) else (content,):
                chain = _after(chain, part)
                if isinstance(part, Mapping) and is_media(part):
                    marks.append(chain)
    except (UnicodeEncodeError, TypeError, OverflowError):
        return ()
    return tuple(marks)


def _after(chain: int, what: object) -> int:
    return xxh3_64_intdigest(chain.to_bytes(8, "little") + msgspec.json.encode(what))


@dataclass(frozen=True, slots=True)
class _Held:
    tokens: int
    until: float


class MediaMemory:
    """Bounded in number (least recently used go first) and in time."""

    def __init__(self, clock: Clock, *, kept_s: float = KEPT_S, most: int = MOST) -> None:
        self._clock = clock
        self._kept_s = kept_s
        self._most = most
        self._held: OrderedDict[int, dict[WorkerId, _Held]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def learn(self, marks: Marks, worker: WorkerId, prompt_tokens: int) -> None:
        """It has just prefilled a prompt with these media; the engine counted so many tokens."""
        if not marks:
            return
        now = self._clock()
        holders = self._held.setdefault(marks[-1], {})
        for name in [name for name, held in holders.items() if held.until <= now]:
            del holders[name]
        holders[worker] = _Held(prompt_tokens, now + self._kept_s)
        self._held.move_to_end(marks[-1])
        if len(self._held) > self._most:
            self._held.popitem(last=False)

    def size(self, marks: Marks, text_tokens: int) -> int:
        """Tokens of a prompt with these media and so many tokens of text, as far as that can be told."""
        counted = max(self.holders(marks).values(), default=0)
        return counted if counted > text_tokens else text_tokens + GUESSED_TOKENS * len(marks)

    def holders(self, marks: Marks) -> dict[WorkerId, int]:
        """Who prefilled the longest known beginning of it, and how many tokens that was."""
        if not marks:
            return {}
        now = self._clock()
        for mark in reversed(marks):
            known = self._held.get(mark, {})
            if current := {name: held.tokens for name, held in known.items() if held.until > now}:
                return current
        return {}


def likely_tokens(
    marks: Marks,
    holders: Mapping[WorkerId, int],
    workers: Sequence[WorkerId],
    matched: Sequence[int],
    unit: int,
) -> list[int]:
    """`matched`, raised to what each of `workers` will probably serve from its cache. Where nobody is known
    to hold the media, one of them gets a `unit` more than it has: enough to be chosen among equals."""
    if any(worker in holders for worker in workers):
        return [max(own, holders.get(worker, 0)) for worker, own in zip(workers, matched, strict=True)]
    if not marks or not workers:
        return list(matched)
    leaning = max(workers, key=lambda worker: xxh3_64_intdigest(f"{marks[0]:x}\x1f{worker}"))
    return [own + unit * (worker == leaning) for worker, own in zip(workers, matched, strict=True)]
