"""Which source a model's tokens come from, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigError
from gateway.prompt.approx import BytesEncoder
from gateway.prompt.base import PromptEncoder
from gateway.prompt.files import has_tokenizer_files, load_tokenizer_files
from gateway.prompt.local import LocalEncoder
from gateway.prompt.render import RenderOptions


@dataclass(frozen=True, slots=True)
class EncoderChoice:
    encoder: PromptEncoder
    reason: str
    """In words for a person: what was chosen, and what stood against the better sources."""


def choose_encoder(
    *,
    tokenizer_path: str | None = None,
    model_path: str | None = None,
    engine: Callable[[], PromptEncoder] | None = None,
    options: RenderOptions | None = None,
    cache_bytes: int = 64 * 1024 * 1024,
    longest: Callable[[], int | None] = lambda: None,
) -> EncoderChoice:
    """Local files that the operator named, else those where the engine says its model lies, else the engine's
    own tokenizer (`engine` makes that encoder; None where it has none), else bytes.

    `longest` is as for LocalEncoder.

    Reads files, up to seconds: call it off the event loop. Raises ConfigError only where `tokenizer_path`
    cannot be used, for that is what somebody asked for.
    """
    if tokenizer_path is not None:
        files = load_tokenizer_files(tokenizer_path)
        encoder = LocalEncoder(files, options, cache_bytes=cache_bytes, longest=longest)
        return EncoderChoice(
            encoder, f"local files at {tokenizer_path}, as configured; read with {encoder.library}"
        )
    against = "the engine names no model path"
    if model_path:
        against = f"no tokenizer files at the engine's model path {model_path}"
        if has_tokenizer_files(Path(model_path)):
            try:
                files = load_tokenizer_files(model_path)
                encoder = LocalEncoder(files, options, cache_bytes=cache_bytes, longest=longest)
            except ConfigError as error:
                against = f"unusable files at the engine's model path: {error}"
            else:
                return EncoderChoice(
                    encoder,
                    f"local files at {model_path}, the engine's model path; read with {encoder.library}",
                )
    if engine is not None:
        return EncoderChoice(engine(), f"the engine's /tokenize: {against}")
    return EncoderChoice(BytesEncoder(), f"bytes in place of tokens: {against}, and it has no /tokenize")
