"""Reads an engine's Prometheus text. Tolerant: a line that can't be read is as good as absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.fleet.worker import Speculates

# engine's metric → its labels for block size and number of blocks
_CONFIG_LABELS = {
    "vllm:cache_config_info": {"block_size": "block_size", "num_gpu_blocks": "num_blocks"},
    "sglang:cache_config_info": {"page_size": "block_size", "num_pages": "num_blocks"},
}
# SGLang 0.5.11 and later: gauges in place of labels
_CONFIG_GAUGES = {"sglang:page_size": "block_size", "sglang:num_pages": "num_blocks"}
# there from the start where vLLM was told to speculate; SGLang says how many it drafts, 0 where it does not
_DRAFTS = ("vllm:spec_decode_num_drafts_total", "sglang:spec_num_draft_tokens")
_RANK_LABELS = ("engine", "dp_rank")
"""vLLM's and SGLang's name of the data-parallel rank; absent where there is one alone."""


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
    for sample in samples(text, (*_CONFIG_LABELS, *_CONFIG_GAUGES)):
        labels = sample.labels
        if any(labels.get(label, str(rank)) != str(rank) for label in _RANK_LABELS):
            continue
        if name := _CONFIG_GAUGES.get(sample.name):
            said = {name: f"{sample.value:.0f}"}
        else:
            said = {name: labels.get(own, "") for own, name in _CONFIG_LABELS[sample.name].items()}
        for name, value in said.items():
            if value.isascii() and value.isdigit() and int(value) > 0:
                found[name] = int(value)
    return found


def speculates(text: str) -> Speculates:
    """Whose names the metrics have of an engine that drafts tokens; empty where it does not."""
    for sample in samples(text, _DRAFTS):
        if sample.name.startswith("vllm:"):
            return "vllm"
        if sample.value > 0:
            return "sglang"
    return ""
