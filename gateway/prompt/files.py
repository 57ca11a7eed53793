"""Tokenizer files of a model on disk: a Hugging Face folder or a GGUF file, read once into one value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from gateway.errors import ConfigError
from gateway.prompt.gguf_metadata import read_gguf_metadata
from gateway.prompt.gguf_tokenizer import build_gguf_tokenizer

_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """`chat_templates` maps names to Jinja sources: ``default`` and, in some models, ``tool_use``… Empty for
    base models. `special_tokens` are the named ones (`bos_token`, `eos_token`, …), those that are set.
    """

    source: Path
    tokenizer: Tokenizer
    chat_templates: Mapping[str, str]
    special_tokens: Mapping[str, str]

    @property
    def vocab_size(self) -> int:
        """Ids are below it, added tokens included."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def token_id(self, name: str) -> int | None:
        """Id of a named special token: ``token_id("eos_token")``."""
        token = self.special_tokens.get(name)
        return None if token is None else self.tokenizer.token_to_id(token)


def has_tokenizer_files(path: Path) -> bool:
    """Whether `path` is a place that `load_tokenizer_files` reads from."""
    return (path / "tokenizer.json").is_file() or (path.suffix == ".gguf" and path.is_file())


def load_tokenizer_files(path: str | Path) -> TokenizerFiles:
    """Reads a folder (`tokenizer.json` and its companions) or a `.gguf` file. Takes up to seconds for a large
    vocabulary: call it off the event loop. Raises ConfigError that says what is missing or unsupported.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        files = _from_gguf(path)
    elif (path / "tokenizer.json").is_file():
        files = _from_folder(path)
    else:
        raise ConfigError(f"{path} has no tokenizer.json and is no .gguf file")
    # a prompt is never cut or filled here: truncation is a request's own field
    files.tokenizer.no_truncation()
    files.tokenizer.no_padding()
    return files


def _from_folder(folder: Path) -> TokenizerFiles:
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
    config = _json_object(folder / "tokenizer_config.json")
    _add_configured_tokens(tokenizer, config)
    special = _special_tokens(_json_object(folder / "special_tokens_map.json")) | _special_tokens(config)
    if "add_bos_token" in config or "add_eos_token" in config:
        set_edge_tokens(
            tokenizer,
            bos=special.get("bos_token") if config.get("add_bos_token") else None,
            eos=special.get("eos_token") if config.get("add_eos_token") else None,
        )
    return TokenizerFiles(folder, tokenizer, _folder_templates(folder, config), special)


def _from_gguf(path: Path) -> TokenizerFiles:
    metadata = read_gguf_metadata(path)
    built = build_gguf_tokenizer(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    special = {
        f"{name}_token": tokens[index]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if isinstance(index := metadata.get(f"tokenizer.ggml.{key}_token_id"), int) and index < len(tokens)
    }
    set_edge_tokens(
        built.tokenizer,
        bos=special.get("bos_token") if built.add_bos else None,
        eos=special.get("eos_token") if built.add_eos else None,
    )
    templates = {
        name: source
        for name, key in (
            ("default", "tokenizer.chat_template"),
            ("tool_use", "tokenizer.chat_template.tool_use"),
        )
        if isinstance(source := metadata.get(key), str)
    }
    return TokenizerFiles(path, built.tokenizer, templates, special)


def set_edge_tokens(tokenizer: Tokenizer, *, bos: str | None, eos: str | None) -> None:
    """What `add_special_tokens` puts round a text. With neither, nothing."""
    edges = [token for token in (bos, eos) if token is not None]
    before, after = [bos] if bos else [], [eos] if eos else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in edges],
    )


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name)))}


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_configured_tokens(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Tokens that only tokenizer_config.json declares; loaders of the engines add them too."""
    declared = config.get("added_tokens_decoder")
    if not isinstance(declared, dict):
        return
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for _, fields in sorted(declared.items(), key=lambda item: int(item[0])):
        if fields["content"] not in known:
            flags = {name: bool(fields.get(name)) for name in ("single_word", "lstrip", "rstrip", "special")}
            normalized = bool(fields.get("normalized", not flags["special"]))
            tokenizer.add_tokens([AddedToken(fields["content"], normalized=normalized, **flags)])


def _folder_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    templates: dict[str, str] = {}
    declared = config.get("chat_template")
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        templates |= {entry["name"]: entry["template"] for entry in declared}
    if isinstance(source := _json_object(folder / "chat_template.json").get("chat_template"), str):
        templates["default"] = source
    if (file := folder / "chat_template.jinja").is_file():
        templates["default"] = file.read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    return templates


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return value
