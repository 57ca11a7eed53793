"""A Hugging Face tokenizer built from the vocabulary inside a GGUF file.

Two kinds: `gpt2` (byte-level BPE with merges, split first by the expression that `tokenizer.ggml.pre` names)
and `llama` (SentencePiece BPE, whose merges follow from the scores of its pieces). Where llama.cpp and the
model's own tokenizer differ (Unicode normalisation of Qwen2), the model's own is followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gateway.errors import ConfigError

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is cut before BPE: by `pattern`, or by GPT-2's own; digits one by one before that."""

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    """A piece that is in the vocabulary is taken whole, whatever the merges say."""
    add_bos: bool = False
    """Where the file itself is silent."""

    def pre_tokenizer(self) -> Any:
        if self.pattern is not None:
            return pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if not self.single_digits:
            return gpt2
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])


def _split_rule(pre: str) -> _Split:
    match pre:
        case "gpt-2" | "phi-2":
            return _Split()
        case "smollm" | "starcoder" | "refact" | "command-r" | "codeshell":
            return _Split(single_digits=True)
        case "llama-bpe" | "llama3" | "llama-v3":
            return _Split(_LLAMA3, ignore_merges=True, add_bos=True)
        case "qwen2" | "deepseek-r1-qwen":
            return _Split(_QWEN2, nfc=True)
        case "tekken":
            return _Split(_TEKKEN, ignore_merges=True, add_bos=True)
        case "gpt-4o" | "llama4":
            return _Split(_GPT4O, ignore_merges=True)
    raise ConfigError(
        f"GGUF pre-tokenizer {pre!r} is not supported: give the model's tokenizer.json folder instead"
    )


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    tokenizer: Tokenizer
    add_bos: bool
    add_eos: bool


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> GgufTokenizer:
    """Raises ConfigError, saying which kind, where the file's tokenizer is of one that is not supported."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ConfigError("the GGUF file has no vocabulary")
    if kind == "gpt2":
        rule = _split_rule(str(metadata.get("tokenizer.ggml.pre", "none named")))
        tokenizer, bos = _byte_level_bpe(tokens, metadata, rule), rule.add_bos
    elif kind == "llama":
        tokenizer, bos = _sentencepiece_bpe(tokens, metadata), True
    else:
        raise ConfigError(f"GGUF tokenizer model {kind!r} is not supported: only gpt2 and llama are")
    _add_special_tokens(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    return GgufTokenizer(
        tokenizer,
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", bos)),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    )


def _byte_level_bpe(tokens: Sequence[str], metadata: Mapping[str, Any], rule: _Split) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.ignore_merges))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(tokens: Sequence[str], metadata: Mapping[str, Any]) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ConfigError("the GGUF file's SentencePiece vocabulary has no scores")
    unknown = tokens[int(metadata.get("tokenizer.ggml.unknown_token_id", 0))]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = _merges_from_scores(tokens, scores, vocab)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), replace] if prefixed else [replace]
    )
    strip = [decoders.Strip(content=" ", left=1)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], vocab: Mapping[str, int]
) -> list[tuple[str, str]]:
    """SentencePiece merges whichever neighbours make the piece of the best score: so every way to cut a piece
    into two known ones is a merge, ranked by the piece's score.
    """
    ranked: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for index, piece in enumerate(tokens):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[index], index, vocab[left], vocab[right], (left, right)))
    ranked.sort()
    return [pair for *_, pair in ranked]


def _add_special_tokens(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    special, plain = [], []
    for token, kind in zip(tokens, types, strict=False):
        if kind in (_CONTROL, _UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
