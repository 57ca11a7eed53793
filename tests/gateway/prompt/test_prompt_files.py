from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from gateway.errors import ConfigError
from gateway.prompt.files import TokenizerFiles, has_tokenizer_files, load_tokenizer_files
from gateway.prompt.gguf_metadata import read_gguf_metadata
from gateway.prompt.gguf_tokenizer import build_gguf_tokenizer

DATA = Path(__file__).resolve().parents[2] / "data" / "tokenizers"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(DATA / "vllm-tiny", tmp_path / "model")
    return tmp_path / "model"


def configure(folder: Path, **fields: Any) -> TokenizerFiles:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return load_tokenizer_files(folder)


def test_folder(tiny: TokenizerFiles) -> None:
    assert tiny.vocab_size == 4096
    assert tiny.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    assert tiny.token_id("eos_token") == 2
    assert tiny.token_id("bos_token") is None
    assert list(tiny.chat_templates) == ["default"]
    assert tiny.chat_templates["default"].startswith("{% for m in messages %}")


def test_gguf(tokenizers: dict[str, TokenizerFiles]) -> None:
    smollm2 = tokenizers["smollm2"]
    assert smollm2.vocab_size == 49152
    assert smollm2.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    # ids as llama.cpp gives them for the same file
    expected = [19556, 905, 28, 357, 506, 216, 33, 34, 35, 36, 37, 216, 2, 3805, 10907]
    text = "Hello world, it's 12345 <|im_end|>\n  ok"
    assert smollm2.tokenizer.encode(text).ids == expected
    assert smollm2.tokenizer.decode(expected, skip_special_tokens=False) == text


def test_gguf_sentencepiece(tokenizers: dict[str, TokenizerFiles]) -> None:
    mistral = tokenizers["mistral-v3"]
    assert mistral.vocab_size == 32768
    # ids as SentencePiece gives them, BOS put before
    assert mistral.tokenizer.encode("hello there").ids == [1, 7080, 29477, 1504]
    assert mistral.tokenizer.decode([1, 7080, 29477, 1504]) == "hello there"
    assert mistral.tokenizer.encode("\U0001f3f3", add_special_tokens=False).tokens == [
        "▁",
        "<0xF0>",
        "<0x9F>",
        "<0x8F>",
        "<0xB3>",
    ]


def test_text_is_never_cut_or_filled(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 3,
        "pad_type_id": 0,
        "pad_token": "<|pad|>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer_files(folder).tokenizer.encode("hello there").ids == [273, 79, 331, 1332]


def test_template_file_wins_over_configuration(folder: Path) -> None:
    assert configure(folder, chat_template="from config").chat_templates["default"].startswith("{% for m")
    (folder / "chat_template.jinja").unlink()
    assert configure(folder, chat_template="from config").chat_templates == {"default": "from config"}
    (folder / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert configure(folder, chat_template="from config").chat_templates == {"default": "from json"}


def test_named_templates(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("with documents")
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    files = configure(folder, chat_template=named)
    assert files.chat_templates == {"default": "d", "tool_use": "t", "rag": "with documents"}


def test_special_tokens_of_both_files(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<|endoftext|>", "lstrip": False}, "eos_token": "<|pad|>"})
    )
    files = configure(folder, eos_token="<|im_end|>", unk_token=None)
    assert files.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


def test_configuration_decides_on_bos_and_eos(folder: Path) -> None:
    tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    with_bos = configure(folder, add_bos_token=True, **tokens)
    assert with_bos.tokenizer.encode("hello there").ids == [0, 273, 79, 331, 1332]
    both = configure(folder, add_bos_token=True, add_eos_token=True, **tokens)
    assert both.tokenizer.encode("hello there").ids == [0, 273, 79, 331, 1332, 2]
    neither = configure(folder, add_bos_token=False, **tokens)
    assert neither.tokenizer.encode("hello there").ids == [273, 79, 331, 1332]


def test_tokens_that_only_the_configuration_declares(folder: Path) -> None:
    declared = {
        "0": {"content": "<|endoftext|>", "special": True},
        "4096": {"content": "<tool>", "special": True},
        "4097": {"content": "<more>", "special": False, "normalized": False},
    }
    files = configure(folder, added_tokens_decoder=declared)
    assert files.vocab_size == 4098
    assert files.tokenizer.encode("<tool><more>").ids == [4096, 4097]


def test_what_cannot_be_read_says_why(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        load_tokenizer_files(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="not a readable GGUF"):
        load_tokenizer_files(tmp_path / "nowhere.gguf")
    (folder / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="no JSON object"):
        load_tokenizer_files(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer_files(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer_files(folder)


def test_where_tokenizer_files_lie(folder: Path) -> None:
    assert has_tokenizer_files(folder)
    assert has_tokenizer_files(DATA / "smollm2" / "smollm2-vocabulary.gguf")
    assert not has_tokenizer_files(folder / "tokenizer.json")
    assert not has_tokenizer_files(DATA / "none.gguf")


def test_metadata_is_what_the_library_wrote(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = GGUFWriter(path, "llama")
    written: dict[str, Any] = {
        "text": "é\n",
        "texts": ["a", "", "🏳️"],
        "counts": [0, 1, 2**31 - 1],
        "scores": [0.5, -2.0],
        "flags": [True, False],
        "nested": [[1, 2], [3]],
    }
    writer.add_string("text", written["text"])
    for name in ("texts", "counts", "scores", "flags", "nested"):
        writer.add_array(name, written[name])
    scalars = (
        ("uint8", 255),
        ("int8", -128),
        ("uint16", 65535),
        ("int16", -32768),
        ("uint32", 2**32 - 1),
        ("int32", -(2**31)),
        ("uint64", 2**64 - 1),
        ("int64", -(2**63)),
        ("float32", 0.25),
        ("float64", 1e300),
        ("bool", True),
    )
    for name, value in scalars:
        getattr(writer, f"add_{name}")(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_gguf_metadata(path) == {"general.architecture": "llama", **written, **dict(scalars)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"GGML" + bytes(20),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1),
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99),
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 99, 1),
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**40),
        b"GGUF" + struct.pack("<IQQQ1sIQ1s", 3, 0, 1, 1, b"k", 8, 1, b"\xff"),
    ],
)
def test_broken_gguf_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match="not a readable GGUF"):
        read_gguf_metadata(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no vocabulary"),
        ({"tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": ["a"]}, "'t5' is not supported"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.pre": "viking"},
            "'viking' is not supported",
        ),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]}, "'none named' is not supported"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}, "no scores"),
    ],
)
def test_unsupported_gguf_tokenizers(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_gguf_tokenizer(metadata)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'ll", " pay", " 12345", " EUR", "!!", "\n\n ", " Café", "'", "S"]),
        (
            "smollm",
            ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " EUR", "!!", "\n\n ", " Café", "'", "S"],
        ),
        ("llama-bpe", ["I", "'ll", " pay", " ", "123", "45", " EUR", "!!\n\n", " ", " Café", "'S"]),
        ("qwen2", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " EUR", "!!\n\n", " ", " Café", "'S"]),
        ("tekken", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " EUR", "!!\n\n", " ", " Café", "'S"]),
        ("gpt-4o", ["I'll", " pay", " ", "123", "45", " EUR", "!!\n\n", " ", " Café'S"]),
    ],
)
def test_how_each_family_cuts_text(pre: str, pieces: list[str]) -> None:
    # by hand from the expressions; é is one letter of two bytes, shown here as the text that it stands for
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": alphabet, "tokenizer.ggml.pre": pre}
    tokenizer = build_gguf_tokenizer(metadata).tokenizer
    text = "I'll pay 12345 EUR!!\n\n  Café'S"
    pre_tokenizer: Any = tokenizer.pre_tokenizer
    cut = [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]
    assert cut == pieces
