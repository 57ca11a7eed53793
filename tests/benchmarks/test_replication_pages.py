"""The pages about replicas: figures worked out by hand from a few rounds."""

from __future__ import annotations

from pathlib import Path

from benchmarks.replication import ROOT, Row, requests, sizing, times, write_pages

ROUNDS: list[Row] = [
    {
        "scenario": "replica killed", "requests": 100, "answers": {"200": 98, "0": 2},
        "calm_p99_ms": 10.0, "rough_p99_ms": 14.0, "load_gone_s": 2.5, "writers_again_s": 4.0,
    },
    {
        "scenario": "replica killed", "requests": 50, "answers": {"200": 49, "503": 1},
        "calm_p99_ms": 12.0, "rough_p99_ms": 13.5, "load_gone_s": 3.5, "writers_again_s": 4.0,
    },
    {"scenario": "a replica joins 1,000,000 blocks", "requests": 7, "ready_s": 9.0, "cpu_s": 8.0},
]  # fmt: skip
MEMORY: Row = {
    "server": "Valkey 9.1", "blocks": 1_000_000, "held": 60.4, "names": 67.0, "stream": 20.0,
    "stream_bytes": 20_000_000, "redis": 148.2, "mirror": 153.4, "loaded_s": 6.2, "loaded_cpu_s": 5.1,
    "longest_wait_ms": 38.0,
}  # fmt: skip
MACHINE: Row = {
    "cores": 2, "cpu": "a CPU", "python": "3.11.7", "server": "Valkey 9.1", "load_before": 0.1,
    "load_after": 3.2,
}  # fmt: skip


def test_requests_of_a_scenario_are_summed_and_what_was_added_is_per_round() -> None:
    (line,) = requests(ROUNDS).splitlines()[2:]
    assert line == ("| replica killed | 2 | 150 | 2 broken off, 1 × 503 | 10.0 – 12.0 | 1.5 – 4.0 |")


def test_times_stand_against_their_bounds() -> None:
    assert times(ROUNDS).splitlines()[2:] == [
        "| a killed replica's load vanishes on the others | 2.5 – 3.5 | 3 | 1 of 2 times |",
        "| its writer's duties are taken over | 4.0 | 10 | yes |",
        "| a new replica has loaded 1,000,000 blocks and is ready, by the clock | 9.0 | 30 | yes |",
        "| the same in seconds of its own core, start of the process included | 8.0 | 30 | yes |",
    ]


def test_the_pages_have_a_place_for_each_table(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    names = ("results-replication.md", "redis.md")
    for name in names:
        (tmp_path / "docs" / name).write_text((ROOT / "docs" / name).read_text())
    document = {"rounds": ROUNDS, "memory": MEMORY, "machine": MACHINE}
    write_pages(document, tmp_path)
    results, redis = ((tmp_path / "docs" / name).read_text() for name in names)
    assert requests(ROUNDS) in results
    assert times(ROUNDS) in results
    assert "2 cores (a CPU), Python 3.11.7, Valkey 9.1; load average 0.1 before and 3.2" in results
    assert sizing(MEMORY) in redis
    assert "loads these 1,000,000 blocks in 6 s (5 s of CPU)" in redis
