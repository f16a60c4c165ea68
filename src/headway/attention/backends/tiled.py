"""Headway's own: exact attention by query tiles that skips whatever the mask rules out. Every feature, every device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headway.attention.backends.base import Backend, Features, Reason
from headway.attention.ops import tiled
from headway.attention.result import AttentionResult
from headway.attention.spec import AttentionSpec, Call

ROWS = 64  # queries per tile
ROWS_WHOLE = 1024  # where tiles need no masking and PyTorch's own kernel cuts them up again


class TileState(NamedTuple):
    """Row bounds (Bt, Lq), the tile plan (Bt, Lq + 1, 6), and what the bounds do not say, broadcastable to the scores."""

    lo: Tensor
    hi: Tensor
    plan: Tensor
    rest: Tensor | None


class Tiled(Backend):
    name = "tiled"
    skips_blocks = True
    features = Features(
        scores=("fp32", "input"), need=("lse", "weights"), softcap=True, bias=True, bias_grad=True, sinks=True, dropout=True,
        value_dim=True,
    )  # fmt: skip

    def why_not(self, spec: AttentionSpec) -> list[Reason]:
        no = super().why_not(spec)
        if "weights" in spec.need and spec.needs_grad:
            no.append(
                Reason("weights", "tiled returns weights without gradients", "run it under torch.no_grad(), or use eager")
            )
        return no

    def prepare(self, mask, spec: AttentionSpec) -> TileState | None:
        if mask is None:
            return None
        if spec.decode and mask.batch > 1:  # one tile for all batch rows
            whole = everything(mask.q_len, mask.kv_len, mask.device, ROWS)
            return whole._replace(rest=mask.to_bool())
        lo, hi, rest = mask.to_hull_and_rest()
        return TileState(lo, hi, mask.to_tiles(rows_of(mask, spec)), rest)

    def run(self, q: Tensor, k: Tensor, v: Tensor, state, call: Call, spec: AttentionSpec) -> AttentionResult:
        if state is None:
            state = everything(q.shape[2], k.shape[2], q.device, rows_of(None, spec))
        bias = call.bias
        if bias is not None:
            bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
        seed = torch.randint(2**62, (1,)) if spec.dropout else None
        out, lse, weights = tiled(
            q, k, v, *state, bias, call.sink_logits, seed, float(call.scale), float(call.softcap or 0.0), float(call.dropout_p),
            spec.scores == "input", spec.needs_grad or "lse" in spec.need, "weights" in spec.need,
        )  # fmt: skip
        return AttentionResult(out, lse if "lse" in spec.need else None, weights if "weights" in spec.need else None)


def rows_of(mask, spec: AttentionSpec) -> int:
    """Queries per tile: many where whole tiles go to PyTorch's kernel, few where scores are held."""
    held = spec.device != "cpu" or spec.needs_grad or spec.softcap or spec.bias or spec.sinks or spec.dropout or spec.need
    banded = mask is not None and any(term.positional or term.other for term in mask.terms)
    return ROWS if held or banded or spec.value_dim != spec.head_dim or spec.scores == "input" else ROWS_WHOLE


def everything(q_len: int, kv_len: int, device, rows: int) -> TileState:
    """The state of a call without a mask."""
    lo = torch.zeros(1, q_len, dtype=torch.int64, device=device)
    hi = torch.full_like(lo, kv_len)
    return TileState(lo, hi, torch.ops.headway.tile_plan(lo, hi, rows), None)
