"""Scheduler and block pool over real arithmetic: whatever they do, a sequence says what it says alone."""

from __future__ import annotations

from typing import Any

from workers.model.resolve import resolve_model
from workers.model.runner import NumpyRunner

ROOT = tuple(range(300, 360))


def test_sharing_chunks_and_preemption_leave_greedy_text_unchanged(make: Any) -> None:
    model = resolve_model("tiny")
    prompts = {
        "a": ROOT[:50],
        "sibling of one step": ROOT[:50],
        "edited": (*ROOT[:20], 99, *ROOT[21:45]),
        "longer": (*ROOT, *range(800, 830)),
        "stranger": tuple(range(600, 640)),
        "again": ROOT[:49],
    }

    def answers(**config: Any) -> tuple[dict[str, list[int | None]], Any]:
        settings = {"num_blocks": 128, "max_model_len": 192} | config
        h = make(NumpyRunner(model, num_blocks=settings["num_blocks"]), **settings)
        for name, prompt in prompts.items():
            h.add(name, prompt, 24, temperature=0.0, ignore_eos=True)
        h.finish()
        return {name: h.tokens(name) for name in prompts}, h.engine.stats()

    alone, _ = answers(enable_prefix_caching=False, max_num_seqs=1)
    shared, stats = answers()
    assert stats.prefix_cache_hits > 0
    assert shared == alone
    cramped, stats = answers(num_blocks=13, max_num_batched_tokens=48)
    assert stats.preemptions > 0
    assert cramped == alone
