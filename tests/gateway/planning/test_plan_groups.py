"""How the GPUs are shared: the smallest group that meets the workload, and the ways side by side."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.planning import Catalog, DoesNotFit, Plan, PlanRequest, plan

CATALOG = Catalog.builtin()


def planned(model: str, gpu: str, **fields: Any) -> Plan:
    return plan(PlanRequest(model=model, gpu=gpu, **fields), CATALOG)


@pytest.mark.parametrize(
    ("model", "gpu", "crowded"), [("llama-3.1-70b", "a100-40", 4), ("deepseek-v3", "b200", 4)]
)
def test_a_group_that_holds_the_model_but_not_the_requests_is_passed_over(
    model: str, gpu: str, crowded: int
) -> None:
    found = planned(model, gpu, gpus=8)
    assert (found.gpu.tensor_parallel, found.gpu.replicas) == (8, 1)
    assert found.max_num_seqs >= 32
    assert found.warnings == []
    rows = {row.tensor_parallel: row for row in found.groups}
    assert sorted(rows) == [1, 2, 4, 8]
    assert not rows[1].fits
    assert rows[crowded].fits
    assert not rows[crowded].meets
    assert rows[crowded].by_memory < rows[crowded].wanted == 16
    assert rows[8].meets


def test_the_smallest_group_that_meets_the_workload_is_taken() -> None:
    found = planned("llama-3.1-70b", "h100", gpus=8)
    assert (found.gpu.tensor_parallel, found.gpu.replicas) == (2, 4)
    assert [row.meets for row in found.groups] == [False, True, True, True]


def test_a_target_between_tokens_takes_more_gpus_a_replica() -> None:
    """Qwen2-7B's 15.2 GB at 75 % of an L4's 300 GB/s are 63 ms, of two 32: the target is 50."""
    found = planned("qwen2-7b", "l4", gpus=4)
    assert (found.gpu.tensor_parallel, found.gpu.replicas) == (2, 2)
    relaxed = planned("qwen2-7b", "l4", gpus=4, itl_target=0.1)
    assert (relaxed.gpu.tensor_parallel, relaxed.gpu.replicas) == (1, 4)


def test_where_no_group_meets_it_the_smallest_that_holds_it_is_taken() -> None:
    found = planned("qwen2-7b", "l4", gpus=4, ttft_target=0.001)
    assert (found.gpu.tensor_parallel, found.gpu.replicas) == (1, 4)
    assert not any(row.meets for row in found.groups)


def test_where_no_group_holds_it_the_one_that_holds_most_is_taken() -> None:
    found = planned("llama-3.1-70b", "a100-40", gpus=8, concurrency=2000)
    rows = {row.tensor_parallel: row.replicas * row.sequences for row in found.groups}
    assert found.gpu.tensor_parallel == max(rows, key=lambda count: rows[count]) == 8


def test_a_group_that_was_asked_for_is_kept_and_a_better_one_named() -> None:
    found = planned("llama-3.1-70b", "a100-40", gpus=8, tensor_parallel=4)
    assert found.gpu.tensor_parallel == 4
    assert any("1 replica(s) of 8 GPUs would meet the workload" in warning for warning in found.warnings)


def test_a_refusal_speaks_of_all_gpus_that_there_are() -> None:
    with pytest.raises(DoesNotFit, match="on each of 4 NVIDIA H100 SXM"):
        planned("llama-3.1-405b", "h100", gpus=4)
    with pytest.raises(DoesNotFit, match="on one NVIDIA H100 SXM"):
        planned("llama-3.1-405b", "h100")
