"""Three real tokenizers and their chat templates: the ids that a gateway routes by are those that the engine
computes with. The engines here tokenise whole texts, without the gateway's segment cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ROOT, Fleet, wait_until
from tests.ports import free_port

DATA = ROOT / "tests" / "data"
TOKENIZERS = {
    "vllm-tiny": DATA / "tokenizers/vllm-tiny",
    "smollm2": DATA / "tokenizers/smollm2/smollm2-vocabulary.gguf",
    "mistral-v3": DATA / "tokenizers/mistral-v3/mistral-v3-vocabulary.gguf",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One simulated engine a tokenizer, each with its own model name, behind one gateway."""
    run_dir = tmp_path_factory.mktemp("parity")
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *args: str) -> None:
        with (run_dir / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", *args], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )
            )  # fmt: skip

    port, admin = free_port(), free_port()
    gateway = ["gateway", "serve", "--port", str(port), "--admin-port", str(admin), "--no-access-log"]
    for model, tokenizer in TOKENIZERS.items():
        engine = free_port()
        arguments = ["--model", "sim:fast", "--served-model-name", model, "--tokenizer", str(tokenizer)]
        start(model, "workers", "serve", *arguments, "--port", str(engine))
        gateway += ["--worker", f"http://127.0.0.1:{engine}", "--tokenizer", f"{model}={tokenizer}"]
    start("gateway", *gateway)
    fleet = Fleet(
        started[-1], f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", run_dir, run_dir / "gateway.log"
    )

    def ready() -> bool:
        assert all(p.poll() is None for p in started), fleet.output()
        try:
            models = httpx.get(fleet.admin + "/admin/models", trust_env=False).json()["models"]
        except httpx.TransportError:
            return False
        return {m["name"] for m in models if m["tokenizer"] == "local"} == set(TOKENIZERS)

    try:
        wait_until(ready, 100, "three engines with their tokenizers")
        yield fleet
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def cases(model: str) -> list[dict[str, Any]]:
    path: Path = DATA / "prompts" / f"{model}.json"
    return [c for c in json.loads(path.read_text(encoding="utf-8")) if not c.get("refused")]


@pytest.mark.parametrize("model", TOKENIZERS)
def test_gateway_and_engine_compute_the_same_ids(fleet: Fleet, model: str) -> None:
    bodies = cases(model)
    assert len(bodies) >= 40
    with httpx.Client(base_url=fleet.url, trust_env=False, timeout=60) as client:
        for case in bodies:
            body = {**case["body"], "model": model, "max_tokens": 1, "return_token_ids": True}
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, (case["name"], answer.text)
            assert answer.json()["prompt_token_ids"] == case["ids"], case["name"]
            assert answer.headers["x-gateway-prompt-tokens"] == str(len(case["ids"])), case["name"]
    assert fleet.metric("gateway_tokenizer_checks_total", model=model, result="match") == len(bodies)
    assert fleet.metric("gateway_tokenizer_checks_total", model=model, result="mismatch") == 0
