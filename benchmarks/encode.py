"""Encoding speed, Headway and transformers interleaved: `python benchmarks/encode.py [CASE ...]`.

ModernBERT-base shape with the same random weights on both sides, float32, two threads, real tokens per second. Outputs are
checked equal before anything is timed. Prints a Markdown table; ratios are of medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from headway.comparison.measure import _peak as peak_mib
from headway.encoding import Encoder
from headway.models.modernbert.configuration_modernbert import ModernBertConfig
from headway.models.modernbert.modeling_modernbert import ModernBertModel

RUNS = 3


def lengths_of(mean: float, spread: float, count: int, low: int, high: int) -> list[int]:
    g = torch.Generator().manual_seed(0)
    return (torch.randn(count, generator=g) * spread + mean).round().clamp(low, high).int().tolist()


CASES: dict[str, list[int]] = {
    "8 of 512": [512] * 8,
    "64 of N(256,128)": lengths_of(256, 128, 64, 16, 512),
    "4 of 2048": [2048] * 4,
    "1 of 8192": [8192],
    "6 of N(4096,2500)": lengths_of(4096, 2500, 6, 512, 8192),
}


def models():
    """The same weights on both sides."""
    import transformers as hf

    torch.manual_seed(0)
    theirs = hf.ModernBertModel(hf.ModernBertConfig(attn_implementation="sdpa")).eval()
    ours = ModernBertModel(ModernBertConfig.from_dict(theirs.config.to_dict())).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def padded(model, rows: list[list[int]], batch: int = 8) -> Callable[[], list[torch.Tensor]]:
    """transformers on padded batches, in the order given."""

    def run() -> list[torch.Tensor]:
        out = []
        for at in range(0, len(rows), batch):
            part = rows[at : at + batch]
            width = max(map(len, part))
            ids = torch.tensor([r + [0] * (width - len(r)) for r in part])
            real = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in part])
            hidden = model(input_ids=ids, attention_mask=real).last_hidden_state
            out += [h[: len(r)].mean(0) for h, r in zip(hidden, part)]
        return out

    return run


def case(name: str, theirs, ours) -> None:
    g = torch.Generator().manual_seed(1)
    rows = [torch.randint(5, 50000, (n,), generator=g).tolist() for n in CASES[name]]
    ordered = sorted(rows, key=len)
    encoder = Encoder(ours)
    sides: dict[str, Callable] = {"Headway": lambda: encoder(rows), "transformers sdpa": padded(theirs, rows)}
    if len(set(map(len, rows))) > 1:
        sides["transformers sdpa, sorted"] = padded(theirs, ordered)
    want, got = torch.stack(sides["transformers sdpa"]()), torch.from_numpy(sides["Headway"]())
    assert float((want - got).abs().max()) < 1e-4, "outputs differ"
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(RUNS):
        for side, run in sides.items():
            start = time.perf_counter()
            run()
            seconds[side].append(time.perf_counter() - start)
    total = sum(map(len, rows))
    speed = {side: total / statistics.median(s) for side, s in seconds.items()}
    print(f"\n### {name}, {total} tokens\n\n| | tokens/s | Headway is | peak MiB |\n|---|---:|---:|---:|")
    for side, tokens in speed.items():
        print(f"| {side} | {tokens:.0f} | {speed['Headway'] / tokens:.2f}x | {peak_mib(sides[side]):.0f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    with torch.no_grad():
        pair = models()
        for name in sys.argv[1:] or CASES:
            case(name, *pair)
