"""Attention calls, Headway and peers interleaved in one process: `python benchmarks/attention.py [CASE ...]`.

Prints a Markdown table of medians, ratios and peak memory for each case. float32, two threads.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from headway.attention import attention, masks
from headway.comparison.measure import _peak as peak_mib

RUNS = 5


def timed(sides: dict[str, Callable], runs: int = RUNS) -> dict[str, float]:
    """Median seconds of each side; the sides take turns."""
    for run in sides.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def table(title: str, sides: dict[str, Callable], *, base: str, memory: bool = True, runs: int = RUNS) -> None:
    """One table; ratio is a side's time over that of `base`."""
    found = timed(sides, runs)
    print(f"\n### {title}\n\n| | median ms | time / {base} | peak MiB |\n|---|---:|---:|---:|")
    for name, seconds in found.items():
        peak = f"{peak_mib(sides[name]):.0f}" if memory else ""
        print(f"| {name} | {seconds * 1e3:.1f} | {seconds / found[base]:.2f} | {peak} |", flush=True)


def normal(heads: int, length: int, dim: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(1, heads, length, dim, requires_grad=grad)


def gemma2() -> None:
    """Soft-capped causal attention, 8 query and 4 key/value heads of 256, 4096 tokens."""
    q, k, v = normal(8, 4096, 256), normal(4, 4096, 256), normal(4, 4096, 256)

    def call(backend: str, **kw) -> Callable:
        return lambda: attention(q, k, v, mask=masks.causal(), backend=backend, **kw)

    with torch.no_grad():
        sides = {
            "tiled": call("tiled", softcap=50.0),
            "eager": call("eager", softcap=50.0),
            "flex, compiled": call("flex", softcap=50.0),
            "SDPA causal, no cap": lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        }
        table("Soft cap, causal, 8/4 heads x 256, 4096 tokens, forward", sides, base="tiled", runs=3)


def gemma2_training() -> None:
    """The same, forward and backward."""
    q, k, v = normal(8, 4096, 256, True), normal(4, 4096, 256, True), normal(4, 4096, 256, True)

    def call(backend: str) -> Callable:
        def step() -> None:
            out = attention(q, k, v, mask=masks.causal(), softcap=50.0, backend=backend)
            torch.autograd.grad(out.sum(), (q, k, v))

        return step

    sides = {"tiled": call("tiled"), "eager": call("eager")}
    table("Soft cap, causal, 8/4 heads x 256, 4096 tokens, forward and backward", sides, base="tiled", runs=3)


def window() -> None:
    """A two-sided window of radius 64, 12 heads of 64, 8192 tokens."""
    q, k, v = (normal(12, 8192, 64) for _ in range(3))
    mask = masks.sliding_bidirectional(radius=64)
    dense = mask.bind(8192, 8192).to_bool()
    with torch.no_grad():
        sides = {
            "tiled": lambda: attention(q, k, v, mask=mask, backend="tiled"),
            "SDPA, dense mask": lambda: scaled_dot_product_attention(q, k, v, dense),
        }
        table("Window of radius 64, 12 heads x 64, 8192 tokens", sides, base="tiled", runs=3)


def documents() -> None:
    """Packed documents: time against the sum of squared lengths, and against running each alone."""
    g = torch.Generator().manual_seed(0)
    rows = []
    with torch.no_grad():
        for mean, count in ((1024, 1), (512, 4), (256, 16), (1024, 4), (2048, 2)):
            lengths = torch.randint(mean // 2, mean * 3 // 2, (count,), generator=g)
            cu = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
            q, k, v = (normal(12, int(cu[-1]), 64) for _ in range(3))
            edges = list(zip(cu[:-1].tolist(), cu[1:].tolist()))
            mask = masks.documents.from_cu_seqlens(cu)

            def packed(q=q, k=k, v=v, mask=mask):
                return attention(q, k, v, mask=mask, backend="tiled")

            def alone(q=q, k=k, v=v, edges=edges):
                return [scaled_dot_product_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b]) for a, b in edges]

            found = timed({"packed": packed, "alone": alone})
            rows.append((lengths.tolist(), found["packed"], found["alone"], int((lengths**2).sum())))
    unit = statistics.median(seconds / squares for _, seconds, _, squares in rows)
    print("\n### Packed documents, 12 heads x 64\n")
    print("| lengths | ms | time per len^2, over the median | packed / each alone |\n|---|---:|---:|---:|")
    for lengths, seconds, apart, squares in rows:
        shown = f"{len(lengths)} of {min(lengths)}-{max(lengths)}"
        print(f"| {shown} | {seconds * 1e3:.1f} | {seconds / squares / unit:.2f} | {seconds / apart:.2f} |")


def overhead() -> None:
    """What a call costs beyond the raw PyTorch function, at tiny shapes with a cached plan."""
    q, k, v = (torch.randn(1, 2, 4, 16) for _ in range(3))

    def many(call: Callable) -> Callable:
        def run() -> None:
            for _ in range(2000):
                call()

        return run

    with torch.no_grad():
        found = timed(
            {"headway": many(lambda: attention(q, k, v)), "raw": many(lambda: scaled_dot_product_attention(q, k, v))}, 9
        )
    print("\n### Overhead of a call with a cached plan\n\n| | microseconds |\n|---|---:|")
    print(f"| raw SDPA | {found['raw'] / 2e-3:.1f} |\n| attention(backend='auto') | {found['headway'] / 2e-3:.1f} |")
    print(f"| difference | {(found['headway'] - found['raw']) / 2e-3:.1f} |")


def importing() -> None:
    """What `import headway` and `import headway.attention` add to `import torch`, each in fresh interpreters."""
    code = "import time, torch; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    print("\n### Import, over `import torch`\n\n| | seconds |\n|---|---:|")
    for name in ("headway", "headway.attention"):
        runs = [float(subprocess.check_output([sys.executable, "-c", code.format(name)])) for _ in range(5)]
        print(f"| {name} | {statistics.median(runs):.3f} |")


CASES = {c.__name__: c for c in (gemma2, gemma2_training, window, documents, overhead, importing)}

if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.manual_seed(0)
    for name in sys.argv[1:] or CASES:
        CASES[name]()
