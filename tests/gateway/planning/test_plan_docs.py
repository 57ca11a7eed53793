"""The table in docs/plan.md is what the planner says."""

from __future__ import annotations

from pathlib import Path

from gateway.planning import Catalog, DoesNotFit, Plan, PlanRequest, plan

DOCS = Path(__file__).parents[3] / "docs" / "plan.md"
GIB = 2**30


def test_the_published_table_is_current() -> None:
    lines = DOCS.read_text().split("test_plan_docs.py -->\n")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    table = rows[1:16]
    assert len({row[0] for row in table}) == 5
    assert len({row[1] for row in table}) == 3
    catalog = Catalog.builtin()
    for model, gpu, *cells in table:
        try:
            found = plan(PlanRequest(model=model, gpu=gpu), catalog)
        except DoesNotFit as refusal:
            expected = [f"does not fit: needs {refusal.gpus_needed}"]
        else:
            expected = figures(found)
        assert cells[: len(expected)] == expected


def figures(found: Plan) -> list[str]:
    at_once = {row.tokens: f"{row.sequences:.1f}" for row in found.lengths}
    return [
        f"{found.model.weights_bytes / GIB:.1f}",
        f"{found.memory.kv / GIB:.1f}",
        f"{found.kv_bytes_per_token:,}",
        f"{found.kv_blocks:,}",
        f"{found.kv_tokens:,}",
        at_once[4096],
        at_once[32768],
        f"{found.max_num_seqs:,}",
        f"{found.latency.ttft_cold * 1e3:,.0f}",
        f"{found.latency.ttft_warm * 1e3:,.0f}",
        f"{found.latency.itl * 1e3:.1f}",
    ]
