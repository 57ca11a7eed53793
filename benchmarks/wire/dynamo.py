"""Dynamo's frontend, which forwards to nobody but workers of its own: its mock workers stand beside it.

They register by files in place of etcd, tell of their blocks over ZMQ in place of NATS, and take prompts a
thousand times faster than their default, which imitates a GPU.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.wire.engine import MODEL
from benchmarks.wire.routers import TOKENIZER, Part, Router

NAME = "dynamo, its own workers"
FASTOKENS = "dynamo, fastokens, its own workers"
"""With the tokenizer that it has beside its default."""
WORKERS = 4
FAST = "1000"
"""Of `--speedup-ratio`: 0, which should mean no delay, is as slow as 1 in version 1.6.1."""
PACED = "0.0003"
"""Of `--decode-speedup-ratio`, together with that: a token each 20 ms, as our mock engines send them."""
BLOCKS = 100_000
"""Of each worker, 16 tokens each: more than a run fills."""


def dynamo(peers: Path, port: int, scratch: Path) -> list[Router]:
    """It in front of paced workers for what a chunk costs, and of fast ones for all else: a paced worker
    takes a prompt only between two of its steps. Empty where it isn't installed."""
    python = peers / "dynamo/bin/python"
    if not list(peers.glob("dynamo/lib/python3*/site-packages/dynamo/mocker")):
        return []
    folder = scratch / "dynamo"
    model = _model(folder / "model")
    settings = {
        "HOME": folder,  # it keeps a cache of models there
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": folder / "registry",
        "DYN_LOG": "error",
        **dict.fromkeys(
            ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"), "127.0.0.1"
        ),
    }
    run = ["env", *(f"{name}={value}" for name, value in settings.items()), str(python), "-m"]
    frontend = [*run, "dynamo.frontend", "--router-mode", "kv"]
    frontend += ["--http-host", "127.0.0.1", "--http-port", str(port)]
    workers = [*run, "dynamo.mocker", "--model-path", str(model), "--model-name", MODEL]
    workers += ["--num-workers", str(WORKERS), "--num-gpu-blocks-override", str(BLOCKS)]
    workers += ["--block-size", "16", "--speedup-ratio", FAST]
    paced = [*workers, "--decode-speedup-ratio", PACED]
    return [
        Router(name, [*frontend, *flags], beside=(beside,), parts=parts)
        for name, flags in ((NAME, ()), (FASTOKENS, ("--tokenizer", "fastokens", "--no-tokenizer-fallback")))
        for beside, parts in ((paced, (Part.CHUNK,)), (workers, (Part.JSON, Part.FIRST, Part.RATE)))
    ]


def _model(folder: Path) -> Path:
    """The tokenizer of our own `tokenising` row and as much of a model's configuration as it asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "vocab_size": 4096,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(shape))
    return folder
