"""How few tokens a text can surely have: who can't take so many refuses it, and nobody has to tokenise it.

It is sure where each byte is a letter of the vocabulary (byte-level BPE) or has a token to fall back to, and
nothing on the way drops text, or takes any number of blanks: then the longest token of the vocabulary stands
for the most.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

NFC_SHRINKS = 4
"""Composed, a text has more than a quarter of its bytes. The most is lost by U+1FBE U+0308 U+0341, seven
bytes that become two; that normalised text stays as it is, in every later release, is Unicode's promise."""


@dataclass(frozen=True, slots=True)
class TokenLength:
    most_bytes: int
    """Of UTF-8, that one token can stand for."""
    dropped: bytes = b""
    """Each of these bytes has no token, and may vanish."""

    def fewest_tokens(self, text: str) -> int:
        """That `text` can have, whatever it is."""
        data = text.encode("utf-8", "surrogatepass")
        counted = len(data.translate(None, self.dropped)) if self.dropped else len(data)
        return -(-counted // self.most_bytes)


def token_length(tokenizer: Tokenizer) -> TokenLength | None:
    """None where a token may stand for any number of bytes, or nobody knows."""
    model = tokenizer.model
    shrinks = _shrinks(_members(_state(tokenizer.normalizer), "normalizers"))
    added = tokenizer.get_added_tokens_decoder().values()
    if not isinstance(model, BPE) or shrinks is None or any(token.lstrip or token.rstrip for token in added):
        return None
    steps = _members(_state(tokenizer.pre_tokenizer), "pretokenizers")
    if not all(map(_keeps, steps)):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    dropped = b""
    if steps and steps[-1]["type"] == "ByteLevel":
        longest = max(map(len, vocabulary), default=1)
        dropped = bytes(byte for byte, letter in enumerate(_letters()) if letter not in vocabulary)
    elif model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        longest = max(len(token.encode()) for token in vocabulary)
    else:
        return None
    if shrinks > 1 and not _IN_NO_TEXT.issuperset(dropped):
        return None  # what is dropped is counted before it is composed
    normal = tokenizer.normalizer
    for token in added:
        forms = (token.content, normal.normalize_str(token.content) if normal is not None else "")
        longest = max(longest, *(len(form.encode()) for form in forms))
    return TokenLength(shrinks * longest, dropped)


_IN_NO_TEXT = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))
"""Bytes that UTF-8 does not have."""


def _shrinks(steps: Collection[Any]) -> int | None:
    """How many times longer a text may be than it is normalised, in bytes; None where any number."""
    times = 1
    for step in steps:
        match step:
            case {"type": "NFC"}:
                times *= NFC_SHRINKS
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                if len(new.encode()) < len(old.encode()):
                    return None
            case _:
                return None
    return times


def _keeps(step: Any) -> bool:
    """It passes on all of the text."""
    match step:
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return bool(behavior != "Removed")
        case {"type": "ByteLevel" | "Digits" | "Metaspace"}:
            return True
        case _:
            return False


def _letters() -> list[str]:
    """By byte, the letter that stands for it in byte-level vocabularies (GPT-2's): itself where it is
    printed, else the next one from 256 on."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def _members(state: Any, of: str) -> list[Any]:
    """The steps of which a part of a tokenizer consists."""
    if state is None:
        return []
    if state["type"] != "Sequence":
        return [state]
    return [member for step in state[of] for member in _members(step, of)]


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())
