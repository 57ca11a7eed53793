"""Text of a wanted length in tokens: words that the tokenizer knows whole, drawn by name."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

TOKENIZER = Path("tests/data/tokenizers/vllm-tiny")
_SPACE = "Ġ"


class Words:
    """One word is one token when a blank comes before it."""

    def __init__(self, vocabulary: list[str]) -> None:
        self._vocabulary = vocabulary
        self.text = lru_cache(maxsize=65_536)(self._text)

    def _text(self, name: str, count: int) -> str:
        """The same words for the same name, whatever was asked before."""
        return " ".join(Random(name).choices(self._vocabulary, k=count))


def load_words(folder: Path = TOKENIZER) -> Words:
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    known = {token.removeprefix(_SPACE) for token in vocabulary if token.startswith(_SPACE)}
    return Words(sorted(w for w in known if 3 <= len(w) <= 8 and w.isascii() and w.isalpha() and w.islower()))
