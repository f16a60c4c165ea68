"""Runs one architecture under `eager` and under `headway` and compares."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
import transformers

from headway.attention.record import record_plans
from headway.integrations.transformers import register
from tests.integrations.architectures import Architecture

PASS, REFUSED, UNTOUCHED, DIFFERS, MISSING = "pass", "refused", "not on the interface", "DIFFERS", "not built"
TOLERANCE = 5e-5  # relative, in float32; rounding alone gives about 1e-6. In float64 eager is no oracle: it masks with -inf


@dataclass(frozen=True)
class Outcome:
    architecture: Architecture
    status: str
    note: str
    error: float = 0.0


def examine(a: Architecture) -> Outcome:
    """Forward, gradients and generation of `a`, `headway` against `eager`, in float32."""
    register()
    try:
        model = build(a)
        inputs = inputs_of(a)
        wanted = [results(model, "eager", x, real) for x, real in inputs]
    except Exception as error:  # this transformers cannot build or run it in its own way
        return Outcome(a, MISSING, one_line(error))
    worst = 0.0
    try:
        for (x, real), want in zip(inputs, wanted):
            with record_plans() as plans:
                got = results(model, "headway", x, real)
            if not plans:
                return Outcome(a, UNTOUCHED, "the model has its own attention code; it runs as before")
            worst = max(worst, distance(got, want))
        note = generated(model, a)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        return Outcome(a, REFUSED, one_line(error))
    if worst > TOLERANCE or note.startswith("differs"):
        return Outcome(a, DIFFERS, note, worst)
    return Outcome(a, PASS, note, worst)


def build(a: Architecture):
    config_class = getattr(
        transformers, next(n for n in (f"{a.name}Config", f"{a.name.replace('_', '')}Config") if hasattr(transformers, n))
    )
    cls = next(c for c in (getattr(transformers, n, None) for n in (a.head, a.head.replace("_", ""))) if c is not None)
    config = config_class(**a.config)
    for name in [n for n in dir(config) if n.endswith(("dropout", "_dropout_prob", "_pdrop", "drop_path_rate", "layerdrop"))]:
        if isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():  # zero biases and sinks, or flat scores, would hide faults
            p.add_(torch.randn_like(p) * (0.5 if p.dim() == 1 and "norm" not in name else 0.1))
    return model


def inputs_of(a: Architecture):
    """(keyword arguments, real tokens or None) of each batch."""
    g = torch.Generator().manual_seed(1)
    if a.kind == "vision":
        shape = (2, 2, 3, 32, 32) if a.trait == "video" else (2, 3, 32, 32)
        return [({"pixel_values": torch.randn(shape, generator=g)}, None)]
    if a.kind == "speech":
        return [({"input_values": torch.randn(2, 400, generator=g)}, None)]
    batches = []
    for side in ("left", "right", "none"):
        ids = torch.randint(3, 99, (3, 13), generator=g)
        mask = torch.ones_like(ids)
        for row, pad in enumerate((0, 4, 9)):
            if side != "none":
                mask[row, slice(0, pad) if side == "left" else slice(13 - pad, None)] = 0
        ids = torch.where(mask.bool(), ids, 0)
        x = {"input_ids": ids, "attention_mask": mask if side != "none" else None}
        if a.kind == "mel":
            x = {"input_features": torch.randn(3, 8, 20, generator=g)}
        if a.kind in ("both", "mel"):
            x["decoder_input_ids"] = torch.randint(3, 99, (3, 7), generator=g)
        batches.append((x, mask.bool() if a.kind in ("decoder", "encoder") else None))
    return batches


def results(model, implementation: str, x: dict, real):
    model.set_attn_implementation(implementation)
    model.zero_grad()
    torch.manual_seed(0)
    out = model(**{k: v for k, v in x.items() if v is not None})[0]
    kept = out[real] if real is not None and out.shape[:2] == real.shape else out
    weight = torch.linspace(-1, 1, kept.numel(), dtype=kept.dtype).view_as(kept)
    (kept * weight).sum().backward()
    return kept.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def distance(got, want) -> float:
    """The largest difference relative to the largest value, of outputs and of each parameter's gradient."""
    if got[1].keys() != want[1].keys():
        return float("inf")
    scale = max(float(g.abs().max()) for g in want[1].values() if g.numel())
    pairs = [(got[0], want[0], float(want[0].abs().max()))] + [
        (got[1][n], want[1][n], scale) for n in want[1] if want[1][n].numel()
    ]
    return max(float((a - b).abs().max()) / (s + 1e-30) if torch.isfinite(a).all() else float("inf") for a, b, s in pairs)


def generated(model, a: Architecture) -> str:
    """Greedy decoding of left-padded rows, tokens and logits."""
    if a.kind not in ("decoder", "both") or not model.can_generate():
        return ""
    x, runs = inputs_of(a)[0][0], []
    x = {k: v for k, v in x.items() if k != "decoder_input_ids"}
    for implementation in ("eager", "headway"):
        model.set_attn_implementation(implementation)
        try:
            made = model.generate(
                **x, max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True, min_new_tokens=6
            )
        except Exception as error:
            if implementation == "eager":
                return "generation does not run in eager either"
            raise error
        runs.append((made.sequences, torch.stack(made.logits)))
    (tokens, logits), (other, others) = runs
    same = torch.equal(tokens, other) and float((logits - others).abs().max()) < 1e-4
    return "generates the same" if same else "differs in generation"


def one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:200].replace("|", "/")
