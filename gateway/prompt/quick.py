"""The same tokens, many times sooner.

Engines tokenise with Hugging Face's library, and what they say decides. `fastokens` gives the same tokens
for most tokenizers in a tenth to a fiftieth of the time, which else is most of what a long prompt costs here.
That it does is not taken on trust: when a tokenizer is loaded, both encode the same awkward texts. Where one
text differs, or it cannot read the tokenizer, or there is no build of it for this platform, Hugging Face's
stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from tokenizers import Tokenizer

try:
    import fastokens
except ImportError:  # no build of it for this platform
    fastokens = None

log = logging.getLogger(__name__)

Encode: TypeAlias = Callable[[Sequence[str]], list[list[int]]]
"""Token ids of each text, without the special tokens of `add_special_tokens`. Raises TypeError or
UnicodeEncodeError for text that is not valid Unicode."""

Read: TypeAlias = Callable[[str], Any]
_READ: Read | None = None if fastokens is None else fastokens.Tokenizer.from_json_str

_RANDOM_TEXTS = 300
_DECODED_TEXTS = 200
_LONG_RUN = 3_000
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJ",
    "éüñßÅåǅαβγжщя",
    "日本語の文章中文漢字カタカナ",
    "한국어조선말",
    "مرحبا שלום",
    "हिन्दीภาษาไทย",
    "😀👩‍👩‍👧‍👦🇩🇪🏳️‍🌈",
    "\u200d\u200b\ufeff\u00a0\u3000\u2028\u0085",
    " \t\n\r\x00\x01\x7f",
    "0123456789٣",
    ".,-!?…'’\"()[]{}<>/\\|_*#@&%$€=+~^`",
    "e\u0301a\u0308\u1100\u1161\u11a8ﬁ①",
)
_PIECES = ("'s", "'t", "'re", "'LL", " don't", "\r\n", "  \n", "\n\n", " <", "://", "def f(x):\n    return x")


@dataclass(frozen=True, slots=True)
class Library:
    """Who encodes: its name, for people, and how."""

    name: str
    encode: Encode
    inline_chars: int
    """So much text takes it about a millisecond."""


def quickest(tokenizer: Tokenizer, read: Read | None = _READ) -> Library:
    """Of those that give the tokens of `tokenizer`, which is neither to cut nor to fill. `read` makes the
    quick one of a tokenizer.json; None where there is none. Takes up to seconds for a large vocabulary: call
    it off the event loop."""
    sure = Library("tokenizers", _sure(tokenizer), 4_096)
    if read is None:
        return sure
    texts = list(awkward_texts(tokenizer))
    try:
        fast = read(tokenizer.to_str())
        found = _encoded(fast, texts)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception
        reason = f"{type(error).__name__}: {error}"[:200]
        log.info("fastokens cannot read this tokenizer: it stays slower", extra={"reason": reason})
        return sure
    if found != sure.encode(texts):
        log.warning("fastokens gives other tokens for this tokenizer: it stays slower")
        return sure
    return Library("fastokens", _quick(fast, sure.encode), 32_768)


def awkward_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Scripts, blanks, marks and numbers in any order, added tokens among them; words of the vocabulary; long
    runs of one character. The same ones each time."""
    random = Random(0)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()][:64]
    pieces = [*_PIECES, *added]
    for _ in range(_RANDOM_TEXTS):
        text = ""
        for _ in range(random.randrange(1, 24)):
            if random.random() < 0.7:
                alphabet = random.choice(_ALPHABETS)
                text += "".join(random.choice(alphabet) for _ in range(random.randrange(1, 10)))
            elif random.random() < 0.7:
                text += random.choice(pieces)
            else:
                text += chr(random.choice((random.randrange(0xD800), random.randrange(0xE000, 0x110000))))
        yield text
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    for _ in range(_DECODED_TEXTS):
        yield tokenizer.decode([random.randrange(size) for _ in range(16)], skip_special_tokens=False)
    for character in ("a", " ", "\n", "9", "-", "漢", "😀", "\u0301"):
        yield character * _LONG_RUN
    yield ""


def _sure(tokenizer: Tokenizer) -> Encode:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    return encode


def _encoded(fast: Any, texts: Sequence[str]) -> list[list[int]]:
    one = fast.encode
    return [one(text, add_special_tokens=False).ids for text in texts]


def _quick(fast: Any, sure: Encode) -> Encode:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        try:
            return _encoded(fast, texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - the same; the sure one decides
            return sure(texts)

    return encode
