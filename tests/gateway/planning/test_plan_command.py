"""`prefix-gateway plan` as a person or a script uses it: output, JSON, picture, exit status."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.cli.plan import command
from gateway.planning import Catalog, Plan

MODELS = len(Catalog.builtin().models)


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(command, list(args))


def test_the_table_shows_the_figures() -> None:
    result = run("qwen2-7b", "--gpu", "l4")
    assert result.exit_code == 0
    for figure in (
        "57,344 B",
        "0.055",
        "0.219",
        "0.438",
        "1.750",
        "MHA 401,408 B (7×)",
        "--max-model-len 7168",
    ):
        assert figure in result.stdout


def test_json_has_the_keys_that_scripts_use() -> None:
    result = run("--model", "qwen2-7b", "--gpu", "l4", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["kv_bytes_per_token"] == 57_344
    assert found["kv_bytes_per_block"] == 917_504
    assert found["kv_tokens"] == 16 * found["kv_blocks"]
    assert f"--max-model-len {found['max_model_len']}" in found["flags"]["vllm"]
    assert f"--max-num-seqs {found['max_num_seqs']}" in found["flags"]["vllm"]
    assert msgspec.json.decode(result.stdout, type=Plan).kv_precision == "fp16"


def test_a_model_file_and_own_figures(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(Catalog.builtin().model("llama-3.1-8b").config))
    result = run(
        str(config),
        *("--gpu-memory-gib", "80", "--gpu-bandwidth", "2000", "--gpu-tflops", "300", "--kv-dtype", "fp8"),
        *("--tokens-in", "2000:8000", "--tokens-out", "200:500", "--prefix", "50%", "--concurrency", "20"),
        "--json",
    )
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["kv_bytes_per_token"] == 65_536
    assert found["workload"]["prefix"] == 1000
    assert found["workload"]["input_longest"] == 8000
    assert found["max_model_len"] == 8704  # 8,500 rounded up to 256
    # the path is one of this machine: whoever deploys names what the engine loads
    for values in (found["flags"]["values"], found["flags"]["sglang_values"]):
        assert msgspec.yaml.decode(values)["engine"]["model"] == "SET/THE NAME OR PATH THAT THE ENGINE LOADS"
    assert any("`model:` is a placeholder" in note for note in found["notes"])


@pytest.mark.parametrize("scenario", ["chat", "document-qa", "long-document", "real-time-chat"])
def test_named_scenarios(scenario: str) -> None:
    assert run("llama-3.1-8b", "--gpu", "h100", "--scenario", scenario).exit_code == 0


def test_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    assert run("gemma-3-12b", "--gpu", "h100", "--plot", str(path)).exit_code == 0
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1440, 480)


def test_a_picture_without_the_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("qwen2-7b", "--gpu", "l4", "--plot", str(tmp_path / "plan.png"))
    assert result.exit_code == 2
    assert "pip install '.[plots]'" in result.stderr


def test_what_does_not_fit_is_status_1_and_says_how_many_would() -> None:
    result = run("llama-3.1-70b", "--gpu", "h100")
    assert result.exit_code == 1
    assert "It needs 2 of them" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["qwen2-8b", "--gpu", "l4"], "qwen2-7b"),
        (["qwen2-7b", "--gpu", "l5"], "did you mean l4"),
        (["qwen2-7b"], "name a GPU"),
        (["--gpu", "l4"], "name a model"),
        (["qwen2-7b", "--gpu", "l4", "--kv-dtype", "fp3"], "'fp3' is not one of"),
        (["qwen2-7b", "--gpu", "l4", "--gpu-memory-utilization", "90"], "share above 0"),
        (["qwen2-7b", "--gpu", "l4", "--tokens-in", "0"], "input_mean must be at least 1"),
        (["qwen2-7b", "--gpu", "l4", "--tokens-in", "0", "--prefix", "50%"], "input_mean must be at least 1"),
        (["nosuch", "--gpu", "l4"], f"no model 'nosuch' in the table; --list names all {MODELS}\n"),
        (["qwen2-7b", "--model", "qwen2-7b", "--gpu", "l4"], "as MODEL or with --model"),
        (["qwen2-7b", "--gpu", "l4", "--tokens-in", "100000"], "100,300 tokens (100,000 in, 300 out)"),
        (["qwen2-7b", "--gpu", "l4", "--tokens-in", "many"], "not MEAN or MEAN:LONGEST"),
        (["qwen2-7b", "--gpu", "l4", "--prefix", "most"], "neither tokens nor a share"),
        (["qwen2-7b", "--gpu", "l4", "--scenario", "dreams"], "no scenario 'dreams'"),
        (["./nowhere/config.json", "--gpu", "l4"], "no file ./nowhere/config.json"),
    ],
)
def test_bad_input_is_status_2_and_names_it(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_list_of_names() -> None:
    result = run("--list")
    assert result.exit_code == 0
    assert "qwen2-7b" in result.stdout
    assert "mi300x" in result.stdout
    assert "long-document" in result.stdout


def test_ways_to_share_the_gpus_are_shown_side_by_side() -> None:
    result = run("llama-3.1-70b", "--gpu", "a100-40", "--gpus", "8")
    assert result.exit_code == 0
    assert "Ways to share 8 GPUs" in result.stdout
    assert "→ 8" in result.stdout
    assert result.stdout.count("meets it") == 1
    assert "Ways to share" not in run("qwen2-7b", "--gpu", "l4").stdout


def test_a_length_that_the_model_does_not_know_is_marked() -> None:
    row = next(line for line in run("qwen2-7b", "--gpu", "l4").stdout.splitlines() if "131,072" in line)
    assert "the model knows 32,768" in row
