"""What `prefix-gateway plan` says of a GPU's times, against that GPU.

    python -m benchmarks.roofline --gpu h200 --model llama-3.1-8b        where PyTorch and a CUDA GPU are

Random weights in the model's shapes (plain decoder layers, bf16), PyTorch's own attention. Decode: one step
of a batch, every sequence with the same context, replayed as a CUDA graph. Prefill: one prompt. Each is the
median of its runs, and stands beside the bound at the published peaks: their ratio is the share of the peak
that was reached, which `plan` takes to be 0.75 of bandwidth and 0.45 of arithmetic.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import asked
from benchmarks.ending import in_one_line, write
from gateway.planning import Catalog
from gateway.planning.precision import kv_precision, weight_precision, weight_sizes
from gateway.planning.roofline import Speed, decode_seconds, prefill_seconds

GPU, MODEL = "h200", "llama-3.1-8b"
RESULTS = Path("docs/results/roofline.json")


class Layers:
    """A decoder's matrices on the GPU. Dimensions as in a Hugging Face config."""

    def __init__(self, torch: Any, config: dict[str, Any]) -> None:
        self.torch, self.config = torch, config
        self.hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head = config.get("head_dim") or self.hidden // self.heads
        inner = config["intermediate_size"]

        def matrix(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * 0.02

        self.layers = [
            (
                matrix((self.heads + 2 * self.kv_heads) * self.head, self.hidden),
                matrix(self.hidden, self.heads * self.head),
                matrix(2 * inner, self.hidden),
                matrix(self.hidden, inner),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        self.output = matrix(config["vocab_size"], self.hidden)

    def run(self, x: Any, cache: list[tuple[Any, Any]] | None) -> Any:
        """`x` is (batch, new tokens, hidden). With a `cache` of K and V, (batch, K/V heads, context, head)
        each, one new token attends to all of it; without, the new tokens to each other."""
        functional = self.torch.nn.functional
        batch, new, _ = x.shape
        for number, (qkv, out, up, down) in enumerate(self.layers):
            h = functional.rms_norm(x, (self.hidden,))
            q, k, v = functional.linear(h, qkv).view(batch, new, -1, self.head).transpose(1, 2).split(
                (self.heads, self.kv_heads, self.kv_heads), dim=1
            )  # fmt: skip
            if cache is not None:
                k, v = cache[number]
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
            x = x + functional.linear(a.transpose(1, 2).reshape(batch, new, -1), out)
            gate, lift = functional.linear(functional.rms_norm(x, (self.hidden,)), up).chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * lift, down)
        return functional.linear(functional.rms_norm(x[:, -1:], (self.hidden,)), self.output)


def median_seconds(torch: Any, step: Callable[[], object], runs: int = 15) -> float:
    times = []
    for _ in range(runs + 3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


def decode(torch: Any, model: Layers, batch: int, context: int) -> float:
    size = (batch, model.kv_heads, context, model.head)
    cache = [
        tuple(torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(2)) for _ in model.layers
    ]
    x = torch.randn(batch, 1, model.hidden, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model.run(x, cache)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.run(x, cache)
    seconds = median_seconds(torch, graph.replay)
    del graph, cache
    torch.cuda.empty_cache()
    return seconds


def prefill(torch: Any, model: Layers, tokens: int) -> float:
    x = torch.randn(1, tokens, model.hidden, device="cuda", dtype=torch.bfloat16)
    return median_seconds(torch, lambda: model.run(x, None), runs=9)


@in_one_line()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default=GPU)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--json", type=asked.writable, help=f"[default: {RESULTS}, of {MODEL} on {GPU}]")
    args = parser.parse_args()
    usual = (args.gpu, args.model) == (GPU, MODEL)
    out = asked.output(args.json, RESULTS, whole=usual, page=False)
    try:
        torch: Any = import_module("torch")
    except ImportError:
        print("this needs PyTorch with CUDA: pip install torch", file=sys.stderr)
        return 2
    catalog = Catalog.builtin()
    gpu, entry = catalog.gpu(args.gpu), catalog.model(args.model)
    shape, precision = entry.shape(), weight_precision("bf16")
    speed, kv = Speed.of(gpu, precision, 1), kv_precision("bf16", shape)
    sizes = weight_sizes(shape, precision)
    properties = torch.cuda.get_device_properties(0)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        model = Layers(torch, entry.config)
        for batch, context in ((1, 2048), (8, 2048), (32, 2048), (128, 2048), (32, 8192), (8, 32_768)):
            bound = decode_seconds(
                shape, speed, kv, batch=batch, context=context, weights=sizes, tensor_parallel=1
            )
            measured = decode(torch, model, batch, context)
            rows.append(
                {"step": "decode", "batch": batch, "tokens": context, "bound_s": bound, "s": measured}
            )
        for tokens in (512, 2048, 8192, 32_768):
            bound = prefill_seconds(shape, speed, tokens=tokens, cached=0, weights=sizes)
            measured = prefill(torch, model, tokens)
            rows.append({"step": "prefill", "batch": 1, "tokens": tokens, "bound_s": bound, "s": measured})
    for row in rows:
        row["share"] = row["bound_s"] / row["s"]
        what = f"{row['step']:8} batch {row['batch']:4} tokens {row['tokens']:6}"
        bound, measured = row["bound_s"] * 1e3, row["s"] * 1e3
        print(f"{what}  bound {bound:8.2f} ms  measured {measured:8.2f} ms  share {row['share']:.2f}")
    machine = {
        "gpu": properties.name, "gib": round(properties.total_memory / 2**30, 2), "torch": torch.__version__,
    }  # fmt: skip
    print(machine)
    if out.result is not None:
        document = {"machine": machine, "model": args.model, "rows": rows}
        write(out.result, json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
