"""Checkpoints in every form give the same weights; damaged ones are refused with a reason."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from workers.model import converted
from workers.model.converted import load_converted
from workers.model.errors import ModelError, ModelFilesInvalid, ModelNotAvailable, UnsupportedModel
from workers.model.gguf import load_gguf
from workers.model.hf import load_hf, load_hf_config
from workers.model.resolve import locate_model, resolve_model
from workers.model.rope import F32
from workers.model.safetensors_file import SafetensorsFile
from workers.model.tiny import TinySpec, ensure_tiny, random_tensors
from workers.model.weights import Weights


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str) -> None:
    """By hand, after the format's description: the reader is checked against something else than itself."""
    header, blob = {}, b""
    for name, tensor in tensors.items():
        data = tensor.tobytes()
        offsets = [len(blob), len(blob) + len(data)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        blob += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def copy_without_weights(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    (target / "model.safetensors").unlink()
    return target


def assert_same(actual: Weights, expected: Weights, rtol: float = 0.0) -> None:
    ours, theirs = dict(actual.tensors()), dict(expected.tensors())
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == np.float32
        np.testing.assert_allclose(ours[name], tensor, rtol=rtol, err_msg=name)


def test_a_folder_gives_config_weights_and_its_tokenizer(tiny_folder: Path) -> None:
    model = load_hf(tiny_folder)
    source = random_tensors(TinySpec())
    assert model.tokenizer_source == tiny_folder
    assert model.config.eos_token_ids == {0, 2}  # config.json says 2, generation_config.json adds 0
    assert model.weights.head is not model.weights.embed
    layer = model.weights.layers[1]
    assert layer.qkv_bias is None
    attn = "model.layers.1.self_attn"
    for rows, part in ((slice(0, 64), "q"), (slice(64, 96), "k"), (slice(96, 128), "v")):
        np.testing.assert_array_equal(layer.qkv[rows], source[f"{attn}.{part}_proj.weight"])
    np.testing.assert_array_equal(layer.gate_up[128:], source["model.layers.1.mlp.up_proj.weight"])


def test_a_tied_head_is_the_embedding_and_qwen2_has_biases(tiny_qwen2_folder: Path) -> None:
    weights = load_hf(tiny_qwen2_folder).weights
    assert weights.head is weights.embed
    bias = weights.layers[0].qkv_bias
    assert bias is not None
    np.testing.assert_array_equal(
        bias[96:], random_tensors(TinySpec(flavour="qwen2"))["model.layers.0.self_attn.v_proj.bias"]
    )


@pytest.mark.parametrize(
    ("code", "dtype", "relative_error"),
    [("BF16", ml_dtypes.bfloat16, 2**-8), ("F16", np.float16, 2**-11), ("F64", np.float64, 0.0)],
)
def test_other_element_types_become_float32(
    tiny_folder: Path, tmp_path: Path, code: str, dtype: type, relative_error: float
) -> None:
    folder = copy_without_weights(tiny_folder, tmp_path / "m")
    tensors = {name: tensor.astype(dtype) for name, tensor in random_tensors(TinySpec()).items()}
    write_safetensors(folder / "model.safetensors", tensors, code)
    weights = load_hf(folder).weights
    np.testing.assert_array_equal(weights.embed, tensors["model.embed_tokens.weight"].astype(np.float32))
    if relative_error:
        assert not np.array_equal(weights.embed, load_hf(tiny_folder).weights.embed)
    assert_close_relative(weights.embed, load_hf(tiny_folder).weights.embed, relative_error)


def assert_close_relative(actual: F32, expected: F32, error: float) -> None:
    # below 2^-14 a float16 is subnormal and its error absolute
    np.testing.assert_allclose(actual, expected, rtol=error, atol=2**-25)


def test_shards_are_found_by_their_index(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_without_weights(tiny_folder, tmp_path / "m")
    tensors = random_tensors(TinySpec())
    shards: dict[str, dict[str, F32]] = {"a.safetensors": {}, "b.safetensors": {}}
    for i, (name, tensor) in enumerate(tensors.items()):
        shards[("a.safetensors", "b.safetensors")[i % 2]][name] = tensor
    for shard, content in shards.items():
        write_safetensors(folder / shard, content, "F32")
    weight_map = {name: shard for shard, content in shards.items() for name in content}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same(load_hf(folder).weights, load_hf(tiny_folder).weights)

    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelFilesInvalid, match=r"lacks shards that its index names: b\.safetensors"):
        load_hf(folder)
    index.write_text(json.dumps({"weight_map": {"x": "../m/a.safetensors"}}))
    with pytest.raises(ModelFilesInvalid, match="lacks shards"):
        load_hf(folder)


def test_missing_and_misshapen_tensors_are_named(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_without_weights(tiny_folder, tmp_path / "m")
    tensors = random_tensors(TinySpec())
    norm = tensors.pop("model.norm.weight")
    write_safetensors(folder / "model.safetensors", tensors, "F32")
    with pytest.raises(ModelFilesInvalid, match=r"no tensor 'model\.norm\.weight'"):
        load_hf(folder)
    write_safetensors(folder / "model.safetensors", tensors | {"model.norm.weight": norm[:3]}, "F32")
    with pytest.raises(ModelFilesInvalid, match=r"'model\.norm\.weight' is \[3\], the config says \[64\]"):
        load_hf(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"{",
        struct.pack("<Q", 2) + b"xx",
        struct.pack("<Q", 9) + b'{"a": 12}',
        struct.pack("<Q", 61) + b'{"a":{"dtype":"F32","shape":[100],"data_offsets":[  0,  400]}}'[:61],
    ],
)
def test_damaged_safetensors_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFilesInvalid, match=r"model\.safetensors"):
        SafetensorsFile(path)


def test_tensors_that_can_t_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.arange(4, dtype=np.int32)}, "I32")
    with pytest.raises(ModelFilesInvalid, match="'a' has element type I32; supported: F64, F32"):
        SafetensorsFile(path).read("a")
    write_safetensors(path, {"a": np.arange(3, dtype=np.int8)}, "F32")
    with pytest.raises(ModelFilesInvalid, match="tensor 'a'"):
        SafetensorsFile(path).read("a")


def test_a_cut_off_file_is_noticed(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_without_weights(tiny_folder, tmp_path / "m")
    whole = (tiny_folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1000])
    with pytest.raises(ModelFilesInvalid, match="cut off"):
        load_hf(folder)


def test_folders_without_the_files_say_what_is_missing(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotAvailable, match=r"no config\.json"):
        load_hf(tmp_path)
    with pytest.raises(ModelNotAvailable, match=r"no \*\.safetensors"):
        load_hf(copy_without_weights(tiny_folder, tmp_path / "m"))


# GGUF


def as_llama_cpp_orders(weight: F32, heads: int) -> F32:
    """The reordering of a converter to GGUF: rows (half, j) of a head become (j, half)."""
    per_head = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(per_head.swapaxes(1, 2)).reshape(weight.shape)


GGUF_STEMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    spec: TinySpec,
    *,
    quantised: bool = False,
    arch: str | None = None,
    extra: dict[str, F32] | None = None,
    scaling: str | None = None,
    experts: int | None = None,
    rotary: int | None = None,
    heads: int | None = None,
) -> None:
    writer = gguf.GGUFWriter(path, arch or spec.flavour)
    writer.add_context_length(spec.max_position_embeddings)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(heads or spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(2.0)
    if experts:
        writer.add_expert_count(experts)
    if rotary:
        writer.add_rope_dimension_count(rotary)
    for name, tensor in random_tensors(spec).items():
        stored = tensor
        if spec.flavour == "llama" and ".q_proj" in name:
            stored = as_llama_cpp_orders(tensor, spec.num_heads)
        if spec.flavour == "llama" and ".k_proj" in name:
            stored = as_llama_cpp_orders(tensor, spec.num_kv_heads)
        for hf_stem, stem in GGUF_STEMS.items():
            name = name.replace(hf_stem, stem)  # noqa: PLW2901
        name = name.replace("model.layers", "blk").replace("model.embed_tokens", "token_embd")  # noqa: PLW2901
        name = name.replace("model.norm", "output_norm").replace("lm_head", "output")  # noqa: PLW2901
        if quantised and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, stored)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("flavour", ["llama", "qwen2"])
def test_a_gguf_is_the_same_model_as_the_folder(
    tiny_folder: Path, tiny_qwen2_folder: Path, tmp_path: Path, flavour: str
) -> None:
    expected = load_hf(tiny_folder if flavour == "llama" else tiny_qwen2_folder)
    spec = TinySpec(flavour="llama" if flavour == "llama" else "qwen2")
    write_gguf(tmp_path / "m.gguf", spec)
    config, weights = load_gguf(tmp_path / "m.gguf")
    assert_same(weights, expected.weights)
    # GGUF keeps 1e-5 as a float32
    assert config.rms_norm_eps == pytest.approx(1e-5, rel=1e-6)
    for field in ("vocab_size", "num_kv_heads", "head_dim", "rope", "tie_word_embeddings", "qkv_bias"):
        assert getattr(config, field) == getattr(expected.config, field)
    assert config.eos_token_ids == {0, 2}


def test_quantised_tensors_are_dequantised(tiny_folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", TinySpec(), quantised=True)
    _, weights = load_gguf(tmp_path / "m.gguf")
    expected = load_hf(tiny_folder).weights
    # Q8_0: 127 steps to the largest of 32 elements, rounded to the nearest, the step kept as a float16
    error = np.abs(weights.layers[0].qkv - expected.layers[0].qkv).max()
    assert 0 < error <= np.abs(expected.layers[0].qkv).max() / 127 * (0.5 + 127 * 2**-11)


def test_rope_divisors_and_linear_scaling_of_a_gguf(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    write_gguf(tmp_path / "a.gguf", TinySpec(), extra={"rope_freqs.weight": divisors})
    assert load_gguf(tmp_path / "a.gguf")[0].rope.divisors == (1, 2, 3, 4, 5, 6, 7, 8)
    write_gguf(tmp_path / "b.gguf", TinySpec(), scaling="linear")
    rope = load_gguf(tmp_path / "b.gguf")[0].rope
    assert (rope.kind, rope.factor) == ("linear", 2.0)


def test_unsupported_ggufs_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, TinySpec(), arch="gemma3")
    with pytest.raises(UnsupportedModel, match=r"'gemma3' is not supported; supported: Llama"):
        load_gguf(path)
    write_gguf(path, TinySpec(), scaling="yarn")
    with pytest.raises(UnsupportedModel, match="'yarn' is not supported"):
        load_gguf(path)
    write_gguf(path, TinySpec(), experts=8)
    with pytest.raises(UnsupportedModel, match="mixtures of experts"):
        load_gguf(path)
    write_gguf(path, TinySpec(), rotary=8)
    with pytest.raises(UnsupportedModel, match="partial rotary"):
        load_gguf(path)


def test_damaged_ggufs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, TinySpec())
    whole = path.read_bytes()
    for content in (b"", b"not a model", whole[:40], whole[:-5000]):
        path.write_bytes(content)
        with pytest.raises(ModelFilesInvalid, match=r"m\.gguf is not a sound GGUF file"):
            load_gguf(path)
    write_gguf(path, TinySpec(), heads=8)
    with pytest.raises(ModelFilesInvalid, match="the config says"):
        load_gguf(path)


# weights converted once


def test_conversion_happens_once_until_the_file_changes(tmp_path: Path) -> None:
    path, cache = tmp_path / "m.gguf", tmp_path / "cache"
    calls: list[Path] = []

    def convert(source: Path) -> tuple[converted.ModelConfig, Weights]:
        calls.append(source)
        return load_gguf(source)

    write_gguf(path, TinySpec())
    config, weights = load_gguf(path)
    for _ in range(2):
        found_config, found = load_converted(path, cache, convert)
        assert found_config == config
        assert_same(found, weights)
    assert len(calls) == 1

    write_gguf(path, TinySpec(seed=1))
    os.utime(path, ns=(1, 1))
    assert_same(load_converted(path, cache, convert)[1], load_gguf(path)[1])
    assert len(calls) == 2
    assert len(list(cache.glob("*.safetensors"))) == 1  # the old one was replaced


def test_a_damaged_conversion_is_made_anew(tmp_path: Path) -> None:
    path, cache = tmp_path / "m.gguf", tmp_path / "cache"
    write_gguf(path, TinySpec(flavour="qwen2"))
    expected = load_converted(path, cache, load_gguf)
    (kept,) = cache.glob("*.safetensors")
    size = kept.stat().st_size
    kept.write_bytes(b"rubbish")
    again = load_converted(path, cache, load_gguf)
    assert again[0] == expected[0]
    assert kept.stat().st_size == size


def test_without_a_place_to_keep_it_the_model_still_loads(tmp_path: Path) -> None:
    path, blocked = tmp_path / "m.gguf", tmp_path / "file"
    write_gguf(path, TinySpec())
    blocked.write_text("not a folder")
    assert_same(load_converted(path, blocked, load_gguf)[1], load_gguf(path)[1])


# names


def test_names_and_paths_are_resolved(tiny_folder: Path, tmp_path: Path) -> None:
    tiny = resolve_model("tiny", cache_dir=tmp_path)
    assert tiny.name == "tiny"
    assert tiny.tokenizer_source == locate_model("tiny", cache_dir=tmp_path)
    assert_same(tiny.weights, load_hf(tiny_folder).weights)
    qwen2 = resolve_model("tiny-qwen2", cache_dir=tmp_path)
    assert (qwen2.name, qwen2.config.model_type) == ("tiny-qwen2", "qwen2")
    assert resolve_model(str(tiny_folder)).name == tiny_folder.name
    write_gguf(tmp_path / "my-model.gguf", TinySpec())
    mine = resolve_model(str(tmp_path / "my-model.gguf"), cache_dir=tmp_path)
    assert (mine.name, mine.tokenizer_source) == ("my-model", tmp_path / "my-model.gguf")


def test_unknown_names_say_what_can_be_given(tmp_path: Path) -> None:
    with pytest.raises(
        ModelNotAvailable, match=r"no model 'nope': give one of smollm2, tiny.*folder.*\.gguf"
    ):
        resolve_model("nope", cache_dir=tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelNotAvailable, match="neither a Hugging Face model folder nor a"):
        resolve_model(str(tmp_path / "weights.bin"), cache_dir=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotAvailable, match="XDG_CACHE_HOME"):
        resolve_model("tiny", cache_dir=tmp_path / "file")
    assert issubclass(ModelNotAvailable, ModelError)


def test_the_tiny_model_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    first, second = ensure_tiny(tmp_path / "a"), ensure_tiny(tmp_path / "b")
    assert ensure_tiny(tmp_path / "a") == first
    names = sorted(path.name for path in first.iterdir())
    assert names == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    other = load_hf(ensure_tiny(tmp_path, TinySpec(seed=1)))
    assert not np.array_equal(other.weights.embed, load_hf(first).weights.embed)
    assert load_hf_config(first).max_position_embeddings == 8192
