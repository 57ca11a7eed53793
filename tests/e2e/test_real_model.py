"""`make run`'s own fleet: a real language model answers in sentences, and the second request is warm."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import start_fleet

QUESTION = "Explain in two sentences why the sky is blue."


@pytest.mark.timeout(300)
def test_a_real_chat(tmp_path: Path) -> None:
    with start_fleet(tmp_path, model="smollm2") as fleet:
        body = {
            "model": "smollm2",
            "max_tokens": 24,
            "temperature": 0,
            "messages": [{"role": "user", "content": QUESTION}],
        }
        answers = []
        for _ in range(2):
            answer = httpx.post(fleet.url + "/v1/chat/completions", json=body, trust_env=False, timeout=120)
            assert answer.status_code == 200, answer.text
            fleet.settle()
            answers.append(answer)
        first, second = answers
        text = first.json()["choices"][0]["message"]["content"]
        # greedy decoding: the model's own words, cold and warm alike
        assert text.startswith("The sky is blue because of")
        assert second.json()["choices"][0]["message"]["content"] == text
        assert second.headers["x-gateway-worker"] == first.headers["x-gateway-worker"]
        prompt = first.json()["usage"]["prompt_tokens"]
        reused = (prompt - 1) // 16 * 16
        assert first.headers["x-gateway-matched-tokens"] == "0"
        assert second.headers["x-gateway-matched-tokens"] == str(reused)
        assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == reused
        assert reused >= 32
