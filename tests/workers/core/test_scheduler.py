"""What the scheduler decides, step by step, on engines small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import pytest

from workers.scheduler import RequestRefused
from workers.types import EngineConfig, StepItem


def fed(step: list[StepItem]) -> list[tuple[str, int, int]]:
    """(request, first position, tokens) of each item."""
    return [(item.request_id, item.start, len(item.tokens)) for item in step]


def prompt(length: int, first: int = 100) -> range:
    return range(first, first + length)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks(make: Any) -> None:
    h = make(max_num_batched_tokens=64)
    h.add("a", prompt(150), max_tokens=3)
    h.finish()
    assert [fed(step) for step in h.runner.steps] == [
        [("a", 0, 64)],
        [("a", 64, 64)],
        [("a", 128, 22)],
        [("a", 150, 1)],
        [("a", 151, 1)],
    ]
    assert [step[0].samples for step in h.runner.steps] == [False, False, True, True, True]
    assert h.tokens("a") == [7, 7, 7]


def test_an_item_carries_all_that_a_runner_needs(make: Any) -> None:
    h = make()
    h.runner.answers["a"] = [900, 901]
    h.add("a", prompt(20), max_tokens=2, temperature=0.5)
    h.finish()
    first, second = (step[0] for step in h.runner.steps)
    assert tuple(first.tokens) == tuple(prompt(20))
    assert list(first.block_table) == [0, 1]
    assert (tuple(second.tokens), second.start, second.prompt_len) == ((900,), 20, 20)
    assert tuple(second.prompt_token_ids) == tuple(prompt(20))
    assert second.sampling.temperature == 0.5


def test_decodes_go_before_new_prompts_and_the_budget_holds(make: Any) -> None:
    h = make(max_num_batched_tokens=32, max_num_seqs=8)
    h.add("a", prompt(10), max_tokens=20)
    h.add("b", prompt(10, 1_000), max_tokens=20)
    h.step()
    h.add("c", prompt(100, 2_000), max_tokens=1)
    h.finish()
    assert fed(h.runner.steps[1]) == [("a", 10, 1), ("b", 10, 1), ("c", 0, 30)]
    assert fed(h.runner.steps[2]) == [("a", 11, 1), ("b", 11, 1), ("c", 30, 30)]
    assert max(sum(len(item.tokens) for item in step) for step in h.runner.steps) == 32


def test_a_long_prompt_leaves_room_in_the_step_for_others(make: Any) -> None:
    h = make(max_num_batched_tokens=8, max_num_seqs=4, long_prefill_token_threshold=3)
    h.add("long", prompt(10), max_tokens=1)
    h.add("short", prompt(2, 1_000), max_tokens=3)
    h.finish()
    assert [fed(step) for step in h.runner.steps] == [
        [("long", 0, 3), ("short", 0, 2)],
        [("long", 3, 3), ("short", 2, 1)],
        [("long", 6, 3), ("short", 3, 1)],
        # short has its three tokens; who is alone keeps nobody waiting
        [("long", 9, 1)],
    ]


def test_the_newly_admitted_are_held_to_it_as_those_who_run_and_the_budget_holds(make: Any) -> None:
    h = make(max_num_batched_tokens=8, max_num_seqs=4, long_prefill_token_threshold=3)
    for i, name in enumerate(("a", "b", "c")):
        h.add(name, prompt(7, 1_000 * i))
    h.finish()
    assert [fed(step) for step in h.runner.steps] == [
        [("a", 0, 3), ("b", 0, 3), ("c", 0, 2)],
        [("a", 3, 3), ("b", 3, 3), ("c", 2, 2)],
        [("a", 6, 1), ("b", 6, 1), ("c", 4, 3)],
    ]


def test_who_is_alone_has_the_whole_step_until_somebody_comes(make: Any) -> None:
    h = make(max_num_batched_tokens=8, max_num_seqs=1, long_prefill_token_threshold=3)
    h.add("long", prompt(20))
    h.step()
    # nobody else may run, but somebody waits: as in vLLM 0.32 that is enough
    h.add("next", prompt(2, 1_000))
    h.finish()
    assert [fed(step) for step in h.runner.steps] == [
        [("long", 0, 8)],
        [("long", 8, 3)],
        [("long", 11, 3)],
        [("long", 14, 3)],
        [("long", 17, 3)],
        [("next", 0, 2)],
    ]


@pytest.mark.parametrize(("threshold", "step_of_short"), [(0, 4), (3, 1)])
def test_a_short_prompt_passes_a_long_one_only_with_a_threshold(
    make: Any, threshold: int, step_of_short: int
) -> None:
    h = make(max_num_batched_tokens=8, max_num_seqs=4, long_prefill_token_threshold=threshold)
    h.add("long", prompt(33))
    h.step()
    h.add("short", prompt(2, 1_000), max_tokens=1)
    h.finish()
    # 25 of the long one are left: three steps of 8, and in the next there is room beside the last token
    first = next(at for at, step in enumerate(h.runner.steps) if ("short", 0, 2) in fed(step))
    assert first == step_of_short
    # the long one is done as soon either way: 8, then 25 alone, or 3 beside the short one and 22 alone
    assert [len(step) for step in h.runner.steps] == ([1, 1, 1, 1, 2] if not threshold else [1, 2, 1, 1, 1])


@pytest.mark.parametrize("blocks", [64, 6])
def test_with_a_threshold_everybody_says_the_same(make_sim: Any, blocks: int) -> None:
    answers = []
    for settings in ({}, {"num_blocks": blocks, "long_prefill_token_threshold": 5}):
        h = make_sim(**{"num_blocks": 64, "max_model_len": 96, "max_num_batched_tokens": 16} | settings)
        for i, length in enumerate((60, 4, 33, 17)):
            h.add(f"r{i}", prompt(length, 1_000 * i), max_tokens=20, ignore_eos=True)
        h.finish()
        answers.append([h.tokens(f"r{i}") for i in range(4)])
        if settings:
            assert (h.engine.stats().preemptions > 0) is (blocks == 6)
    assert answers[0] == answers[1]


def test_no_more_sequences_run_than_allowed_and_all_get_their_turn(make: Any) -> None:
    h = make(max_num_seqs=3)
    for i in range(10):
        h.add(f"r{i}", prompt(5, 100 * i), max_tokens=4)
    h.step()
    assert (h.engine.stats().running, h.engine.stats().waiting) == (3, 7)
    h.finish()
    assert max(len(step) for step in h.runner.steps) == 3
    assert all(len(h.outputs[f"r{i}"]) == 4 for i in range(10))
    firsts = list(h.outputs)
    assert firsts == sorted(firsts, key=lambda name: int(name[1:]))


def test_a_big_request_at_the_head_is_not_overtaken(make: Any) -> None:
    h = make(num_blocks=8, max_model_len=128, max_num_batched_tokens=128)
    h.add("running", prompt(60), max_tokens=6)
    h.step()
    h.add("big", prompt(100, 1_000), max_tokens=1)
    h.add("small", prompt(5, 2_000), max_tokens=1)
    h.step()
    # 4 blocks are left: 7 are wanted, and the one behind, which would fit, waits as well
    assert h.engine.stats().waiting == 2
    h.finish()
    assert list(h.outputs) == ["running", "big", "small"]


def test_the_latest_arrival_is_preempted_and_comes_back_first(make: Any) -> None:
    # 6 blocks of 16: each holds two, the seventh is wanted when both reach position 32
    h = make(num_blocks=6, max_model_len=96, max_num_batched_tokens=96)
    for i, name in enumerate(("a", "b", "c")):
        h.add(name, prompt(30, 1_000 * i), max_tokens=5)
    h.add("late", prompt(30, 9_000), max_tokens=1)
    h.step()
    h.step()
    assert h.engine.stats().preemptions == 0
    h.step()
    # a needs a third block: c gives up its two, a takes one of them and b the other
    assert fed(h.runner.steps[2]) == [("a", 31, 1), ("b", 31, 1), ("c", 31, 1)]
    h.step()
    assert fed(h.runner.steps[3]) == [("a", 32, 1), ("b", 32, 1)]
    assert h.engine.stats().preemptions == 1
    h.finish()
    assert [list(h.outputs).index(name) for name in ("a", "b", "c", "late")] == [0, 1, 2, 3]
    assert [len(h.outputs[name]) for name in ("a", "b", "c", "late")] == [5, 5, 5, 1]


def test_a_preempted_sequence_says_the_same_as_one_that_was_not(make_sim: Any) -> None:
    names = [f"r{i}" for i in range(6)]
    answers = []
    for blocks in (256, 12):
        h = make_sim(num_blocks=blocks, max_model_len=192, max_num_batched_tokens=48, max_num_seqs=8)
        for i, name in enumerate(names):
            h.add(name, prompt(20 + i, 1_000 * i), max_tokens=50, ignore_eos=True)
        h.finish()
        answers.append([h.tokens(name) for name in names])
        preemptions = h.engine.stats().preemptions
        assert preemptions > 0 if blocks == 12 else preemptions == 0
    assert answers[0] == answers[1]


def test_cached_tokens_are_those_of_the_first_scheduling(make: Any) -> None:
    h = make(num_blocks=6, max_model_len=96, max_num_batched_tokens=96)
    h.add("a", prompt(30), max_tokens=40)
    h.add("b", prompt(40, 1_000), max_tokens=30)
    h.finish()
    assert h.engine.stats().preemptions > 0
    # b found blocks of its own when it came back, which is no hit
    assert {output.num_cached_tokens for output in h.outputs["b"]} == {0}
    assert (h.engine.stats().prefix_cache_queries, h.engine.stats().prefix_cache_hits) == (70, 0)


def test_an_abort_frees_at_once_running_or_waiting(make: Any) -> None:
    h = make(max_num_seqs=1)
    h.add("a", prompt(40), max_tokens=100)
    h.add("b", prompt(40, 1_000))
    h.step()
    assert h.engine.stats().kv_cache_usage == 3 / 64
    ended = h.engine.abort("a")
    assert (ended.token_id, ended.finish_reason, ended.num_cached_tokens) == (None, "abort", 0)
    assert h.engine.stats().kv_cache_usage == 0
    assert h.engine.abort("b").finish_reason == "abort"
    assert h.engine.abort("b") is None
    assert not h.engine.has_work
    assert h.step() == []
    h.engine.check_integrity()


def test_what_an_aborted_sequence_computed_stays_cached(make: Any) -> None:
    h = make()
    h.add("a", prompt(40), max_tokens=100)
    h.step()
    h.engine.abort("a")
    assert h.run("b", prompt(40)) == 32


def test_max_model_len_ends_a_sequence(make: Any) -> None:
    h = make(max_model_len=32)
    h.add("a", prompt(30), max_tokens=100)
    h.finish()
    assert [o.finish_reason for o in h.outputs["a"]] == [None, "length"]


@pytest.mark.parametrize(
    ("sampling", "reason", "stop", "length"),
    [
        ({}, "stop", None, 2),
        ({"ignore_eos": True}, "length", None, 5),
        ({"min_tokens": 3}, "length", None, 5),
        ({"ignore_eos": True, "stop_token_ids": (12,)}, "stop", 12, 3),
        ({"stop_token_ids": (2,), "ignore_eos": True}, "stop", 2, 2),
        ({"stop_token_ids": (11,), "min_tokens": 2}, "stop", None, 2),
    ],
)
def test_what_ends_a_sequence(
    make: Any, sampling: dict[str, Any], reason: str, stop: int | None, length: int
) -> None:
    h = make()  # its end-of-sequence token is 2
    h.runner.answers["a"] = [11, 2, 12, 13, 14]
    h.add("a", prompt(4), max_tokens=5, **sampling)
    h.finish()
    last = h.outputs["a"][-1]
    assert (last.finish_reason, last.stop_reason, len(h.outputs["a"])) == (reason, stop, length)


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "message"),
    [((), 1, "empty"), (tuple(range(32)), 1, "32 tokens.*at most 31"), ((1,), 0, "max_tokens")],
)
def test_what_can_never_be_served_is_refused(
    make: Any, tokens: tuple[int, ...], max_tokens: int, message: str
) -> None:
    h = make(max_model_len=32)
    with pytest.raises(RequestRefused, match=message):
        h.add("a", tokens, max_tokens)
    assert not h.engine.has_work


def test_an_id_can_be_here_only_once(make: Any) -> None:
    h = make()
    h.add("a", prompt(5))
    with pytest.raises(RequestRefused, match="already"):
        h.add("a", prompt(5))
    h.finish()
    h.add("a", prompt(5))
    h.finish()
    assert len(h.outputs["a"]) == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_blocks": 3, "max_model_len": 49}, "lower it to 48"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"long_prefill_token_threshold": -1}, r"long_prefill_token_threshold \(-1\) must be 0, for none"),
        ({"long_prefill_token_threshold": 1_025}, r"\(1025\).*at most max_model_len \(1024\)"),
    ],
)
def test_a_config_that_would_starve_is_refused(make: Any, config: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**config)


def test_a_runner_that_forgets_a_token_is_an_error(make: Any) -> None:
    class Silent:
        vocab_size = 10
        eos_token_ids: frozenset[int] = frozenset()

        def execute(self, items: list[StepItem]) -> list[None]:
            return [None for _ in items]

    h = make(Silent())
    h.add("a", prompt(5))
    with pytest.raises(ValueError, match="no token"):
        h.step()


def test_the_default_config_is_one_that_works(make: Any) -> None:
    assert EngineConfig("m").num_blocks * EngineConfig("m").block_size >= EngineConfig("m").max_model_len
