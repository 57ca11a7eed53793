"""Reads an engine's Prometheus text. Tolerant: a line that can't be read is as good as absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# engine's metric → its labels for block size and number of blocks
_CACHE_CONFIG = {
    "vllm:cache_config_info": ("block_size", "num_gpu_blocks"),
    "sglang:cache_config_info": ("page_size", "num_pages"),
}


def samples(text: str, names: Iterable[str]) -> Iterator[Sample]:
    """Samples of the metrics called `names`, in order; other lines are not even parsed."""
    wanted = tuple(names)
    for line in text.splitlines():
        if not line.startswith(wanted):
            continue
        try:
            for family in text_string_to_metric_families(line + "\n"):
                yield from (sample for sample in family.samples if sample.name in wanted)
        except (ValueError, IndexError, KeyError):
            continue


def cache_config(text: str, rank: int = 0) -> dict[str, int]:
    """`block_size` in tokens and `num_blocks` of the engine's rank, where it says so."""
    found: dict[str, int] = {}
    for sample in samples(text, _CACHE_CONFIG):
        labels = sample.labels
        if labels.get("engine", str(rank)) != str(rank):
            continue
        size, count = _CACHE_CONFIG[sample.name]
        for name, label in (("block_size", size), ("num_blocks", count)):
            value = labels.get(label, "")
            if value.isascii() and value.isdigit() and int(value) > 0:
                found[name] = int(value)
    return found
