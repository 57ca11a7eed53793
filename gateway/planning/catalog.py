"""The built-in tables: open models, GPUs, workloads. Read from package data, validated on reading."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Protocol, TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.planning.config import shape_from_config
from gateway.planning.shape import ModelShape
from gateway.planning.workload import Workload


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU, as published. FLOP/s are dense."""

    name: str
    title: str
    memory_gb: float
    usable_gib: float
    """What the driver reports as total: the base of gpu-memory-utilization."""
    bandwidth: float
    """GB/s."""
    bf16: float
    """TFLOP/s."""
    fp8: float | None = None
    product: str = ""
    source: str = ""
    vendor: str = "nvidia"
    aliases: tuple[str, ...] = ()
    note: str = ""
    has_bf16: bool = True


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    source: str
    """Hugging Face repository whose config.json has `config`'s fields."""
    config: dict[str, Any]
    parameters: int | None = None
    """The published number of parameters."""
    aliases: tuple[str, ...] = ()

    def shape(self) -> ModelShape:
        return shape_from_config(self.config, name=self.name, source=f"https://huggingface.co/{self.source}")


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    title: str
    input_mean: int
    input_longest: int
    output_mean: int
    output_longest: int
    prefix: int
    concurrency: int
    ttft_target: float
    itl_target: float
    aliases: tuple[str, ...] = ()

    def workload(self) -> Workload:
        return Workload(
            title=self.title,
            input_mean=self.input_mean,
            input_longest=self.input_longest,
            output_mean=self.output_mean,
            output_longest=self.output_longest,
            prefix=self.prefix,
            concurrency=self.concurrency,
            ttft_target=self.ttft_target,
            itl_target=self.itl_target,
        )


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


N = TypeVar("N", bound=_Named)


class Catalog(msgspec.Struct, frozen=True):
    models: list[ModelEntry]
    gpus: list[Gpu]
    scenarios: list[Scenario]

    @classmethod
    def builtin(cls) -> Catalog:
        data = files("gateway.planning") / "data"
        return cls(
            models=msgspec.yaml.decode((data / "models.yaml").read_bytes(), type=list[ModelEntry]),
            gpus=msgspec.yaml.decode((data / "gpus.yaml").read_bytes(), type=list[Gpu]),
            scenarios=msgspec.yaml.decode((data / "scenarios.yaml").read_bytes(), type=list[Scenario]),
        )

    def model(self, name: str) -> ModelEntry:
        return _find(self.models, name, what="model", param="model")

    def gpu(self, name: str) -> Gpu:
        return _find(self.gpus, name, what="GPU", param="gpu")

    def scenario(self, name: str) -> Scenario:
        return _find(self.scenarios, name, what="scenario", param="scenario")


def _find(entries: Sequence[N], name: str, *, what: str, param: str) -> N:
    """By name or alias; case, the owner before a slash and endings that change no shape do not matter."""
    wanted = _plain(name)
    known: dict[str, N] = {}
    for entry in entries:
        for each in (entry.name, *entry.aliases):
            known[_plain(each)] = entry
    if wanted in known:
        return known[wanted]
    close = difflib.get_close_matches(wanted, known, n=5, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else f"--list names all {len(entries)}"
    raise InvalidRequest(f"no {what} {name!r} in the table; {hint}", param=param)


QUANTISED = {
    **dict.fromkeys(("awq", "gptq", "gptq-int4", "w4a16", "int4", "quantized.w4a16"), "int4"),
    **dict.fromkeys(("gptq-int8", "w8a8", "int8", "quantized.w8a8", "quantized.w8a16"), "int8"),
    **dict.fromkeys(("fp8", "fp8-dynamic", "dynamic-fp8"), "fp8"),
    **dict.fromkeys(("nvfp4", "fp4"), "nvfp4"),
}
"""Endings of repositories' names, and the weight precision that they stand for."""


def weights_of(name: str) -> str | None:
    """The weight precision that the name of a quantised checkpoint says; None where it says none."""
    return _split(name)[1]


def _plain(name: str) -> str:
    return _split(name)[0]


def _split(name: str) -> tuple[str, str | None]:
    plain = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").replace(" ", "-")
    weights = None
    for ending in sorted(QUANTISED, key=len, reverse=True):
        if plain.endswith(f"-{ending}"):
            plain, weights = plain.removesuffix(f"-{ending}"), QUANTISED[ending]
            break
    for ending in ("-hf", "-instruct", "-it", "-chat"):
        plain = plain.removesuffix(ending)
    return plain.removeprefix("meta-").removeprefix("nvidia-").removeprefix("amd-"), weights
