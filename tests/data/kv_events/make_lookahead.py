"""Writes `lookahead-0.33.0.json` with vLLM's own cache manager, in an environment that has vLLM 0.33:

    python make_lookahead.py OUT.json

Chats whose turns follow one another, and others that leave them at every place of a block, one request at a
time, in a cache of 40 blocks of 16. The same prompts for each kind of engine, which is named for what
becomes there of the last block that it holds of a prompt. By prompt: how many of its tokens the manager
found in its cache, and the batch of events as the engine publishes it, in base64.
"""

import base64
import json
import random
import sys
from pathlib import Path

import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK, BLOCKS, REQUESTS = 16, 40, 40
KINDS = {
    "looks ahead": {"num_hash_lookahead_tokens": 1},
    "looks two ahead": {"num_hash_lookahead_tokens": 2},
    "dropped": {"use_eagle": True},
    "kept": {},
}


class Engine:
    """What of an engine decides about its cache: prompts are prefilled whole, answers a token at a time."""

    def __init__(self, flags):
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        group = KVCacheGroupSpec(["layer"], spec, is_eagle_group=flags.get("use_eagle", False))
        config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[group])
        self.manager = KVCacheManager(
            config,
            max_model_len=1024,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_kv_cache_events=True,
            **flags,
        )
        self.hasher = get_request_block_hasher(BLOCK, sha256_cbor, flags.get("num_hash_lookahead_tokens", 0))

    def answer(self, name, prompt, output):
        """The cached tokens, and what it says of its blocks."""
        params = SamplingParams(max_tokens=100)
        params.update_from_generation_config({}, None)
        request = Request(name, prompt, params, None, block_hasher=self.hasher)
        found, cached, _ = self.manager.get_computed_blocks(request)
        assert self.manager.allocate_slots(request, len(prompt) - cached, cached, found) is not None
        request.num_computed_tokens = len(prompt)
        for token in output:
            request.append_output_token_ids(token)
            assert self.manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        self.manager.free(request)
        return cached, self.manager.take_events()


def chats(rng):
    """Prompts and answers: turns of a chat, copies of it, and chats that begin alike."""
    known = [[rng.randrange(1000) for _ in range(90)]]
    for _ in range(REQUESTS):
        base = rng.choice(known[-4:])
        cut = rng.randrange(16, len(base) + 1)
        if rng.random() < 0.4:  # at the end of a block
            cut = cut // BLOCK * BLOCK
        kept = base if rng.random() < 0.3 else base[:cut]
        prompt = kept + [rng.randrange(1000) for _ in range(rng.randrange(0, 40))]
        prompt = prompt[:300]
        output = [rng.randrange(1000) for _ in range(rng.randrange(1, 30))]
        yield prompt, output
        known.append(prompt + output)


def main(out_file):
    init_none_hash(sha256_cbor)
    encode = msgspec.msgpack.Encoder().encode
    requests = list(chats(random.Random(7)))
    lines = [json.dumps({"prompts": [prompt for prompt, _ in requests]}, separators=(",", ":"))]
    for kind, flags in KINDS.items():
        engine, cached, batches = Engine(flags), [], []
        for number, (prompt, output) in enumerate(requests):
            found, events = engine.answer(f"r{number}", prompt, output)
            cached.append(found)
            payload = encode(KVEventBatch(ts=float(number), events=events, data_parallel_rank=0))
            batches.append(base64.b64encode(payload).decode())
        lines.append(json.dumps({"kind": kind, "cached": cached, "events": batches}, separators=(",", ":")))
    joined = ",\n".join(lines)
    Path(out_file).write_text(f"[\n{joined}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
