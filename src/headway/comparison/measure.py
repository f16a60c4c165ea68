"""The measurements behind `headway compare`."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.attention import BackendRefused, attention_backend, backends, record_plans


@dataclass
class Row:
    """One backend. Errors are over real tokens, of logits or hidden states (of all gradients when training)."""

    backend: str
    accepted: bool
    reasons: list[str] = field(default_factory=list)
    adaptations: list[str] = field(default_factory=list)
    tokens_per_second: float | None = None
    peak_mib: float | None = None
    max_error: float | None = None
    mean_error: float | None = None
    max_difference_to_eager: float | None = None
    top1: float | None = None
    graphs: int | None = None


@dataclass
class Report:
    model: str
    dtype: str
    parameters: int
    tokens: int
    train: bool
    rows: list[Row]
    mask: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    model, name: str, inputs: dict[str, Tensor], *, only: list[str] | None = None, train: bool = False, runs: int = 5,
    count_graphs: bool = False, progress: Callable[[str], None] = lambda text: None,
) -> Report:  # fmt: skip
    """Runs `model` on `inputs` (input_ids, attention_mask) with every registered backend, or those named.

    The reference is the same model in float64 with dense attention; timed runs of the backends alternate.
    """
    real = inputs["attention_mask"].bool()
    step = _trained if train else _forward
    progress("float64 reference")
    exact = step(copy.deepcopy(model).double(), inputs, "eager")
    progress("eager")
    eager = step(model, inputs, "eager")
    rows, timed = [], []
    for backend in only or list(backends()):
        progress(backend)
        row = Row(backend, True)
        rows.append(row)
        try:
            with record_plans() as plans:
                got = step(model, inputs, backend)
        except BackendRefused as refused:
            row.accepted = False
            row.reasons = [r.text + (f" ({r.fix})" if r.fix else "") for r in refused.reasons]
            continue
        row.adaptations = sorted({a.text for plan, _ in plans for a in plan.adaptations})
        _errors(row, got, exact, eager, real)
        row.peak_mib = _peak(partial(step, model, inputs, backend))
        if count_graphs:
            row.graphs = graphs_of(model, inputs, backend)
        timed.append(row)
    seconds: dict[str, list[float]] = {row.backend: [] for row in timed}
    for i in range(runs):
        for row in timed:
            progress(f"timing {i + 1} of {runs}: {row.backend}")
            start = time.perf_counter()
            step(model, inputs, row.backend)
            seconds[row.backend].append(time.perf_counter() - start)
    total = int(real.sum())
    for row in timed:
        row.tokens_per_second = total / statistics.median(seconds[row.backend]) if runs else None
    dtype = str(model.dtype).removeprefix("torch.")
    return Report(name, dtype, model.num_parameters(), total, train, rows)


def _output(out) -> Tensor:
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def _forward(model, inputs, backend: str) -> dict[str, Tensor]:
    with torch.no_grad(), attention_backend(backend):
        return {"output": _output(model(**inputs))}


def _trained(model, inputs, backend: str) -> dict[str, Tensor]:
    """Output and all gradients of a step: the language-model loss, or the mean square of the hidden states."""
    model.zero_grad(set_to_none=True)
    with torch.enable_grad(), attention_backend(backend):
        if hasattr(model, "lm_head"):
            labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
            out = model(**inputs, labels=labels)
            out.loss.backward()
        else:
            out = model(**inputs)
            _output(out).square().mean().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {"output": _output(out).detach(), **grads}


def _errors(row: Row, got: dict[str, Tensor], exact: dict[str, Tensor], eager: dict[str, Tensor], real: Tensor) -> None:
    def differences(other: dict[str, Tensor]) -> list[Tensor]:
        found = [(got[n].double() - other[n].double()).abs() for n in got]
        return [found[0][real], *found[1:]]

    errors = differences(exact)
    row.max_error = max(float(e.max()) for e in errors)
    row.mean_error = float(sum(e.sum() for e in errors) / sum(e.numel() for e in errors))
    row.max_difference_to_eager = max(float(e.max()) for e in differences(eager))
    if got["output"].shape[-1] > 4096:  # logits over a vocabulary
        agree = got["output"][real].argmax(-1) == exact["output"][real].argmax(-1)
        row.top1 = float(agree.double().mean())


def _peak(run: Callable[[], Any]) -> float:
    """MiB allocated at the highest point of a run, over what was held before (from the allocator's own events)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    found = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(found, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


def graphs_of(model, inputs: dict[str, Tensor], backend: str, lengths: tuple[int, ...] = (5, 9, 16, 23)) -> int:
    """Graphs that a compiled forward pass needs over several lengths (fullgraph, dynamic shapes); -1 if it breaks."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(lambda **kw: _output(model(**kw)), backend=counter, fullgraph=True, dynamic=True)
    try:
        with torch.no_grad(), attention_backend(backend):
            for n in lengths:
                compiled(**{k: v[:, :n] for k, v in inputs.items()})
    except Exception:
        return -1
    finally:
        torch._dynamo.reset()
    return counter.frame_count
