"""`headway::tiled`, an operator: autograd and fake kernels are registered here, the work is done in `tiles.py`.

A loop over tiles traced by Dynamo would specialise on every length; an operator does not. It takes tensors and scalars
only, so that the same schema can be served by a native kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention import tiles


@torch.library.custom_op("headway::tiled", mutates_args=())
def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    plan: Tensor,
    rest: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    scale: float,
    softcap: float,
    dropout_p: float,
    round_scores: bool,
    need_lse: bool,
    need_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse or empty, weights or empty). softcap 0 = none; `lo, hi, plan, rest` are the mask (`BoundMask`)."""
    terms = tiles.Terms(lo, hi, plan, rest, bias, sinks, seed, scale, softcap, dropout_p, round_scores)
    with torch.autocast(q.device.type, enabled=False):  # precision is the call's business
        return tiles.forward(q, k, v, terms, need_lse, need_weights)


@tiled.register_fake
def _(q, k, v, lo, hi, plan, rest, bias, sinks, seed, scale, softcap, dropout_p, round_scores, need_lse, need_weights):
    work = torch.promote_types(q.dtype, torch.float32)
    batch, heads, q_len, _ = q.shape
    return (
        q.new_empty(batch, heads, q_len, v.shape[3]),
        q.new_empty((batch, heads, q_len) if need_lse else (0,), dtype=work),
        q.new_empty((batch, heads, q_len, k.shape[2]) if need_weights else (0,), dtype=work),
    )


@torch.library.custom_op("headway::tiled_backward", mutates_args=())
def tiled_backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lo: Tensor,
    hi: Tensor,
    plan: Tensor,
    rest: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    scale: float,
    softcap: float,
    dropout_p: float,
    round_scores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, bias (or empty), sinks (or empty)."""
    terms = tiles.Terms(lo, hi, plan, rest, bias, sinks, seed, scale, softcap, dropout_p, round_scores)
    with torch.autocast(q.device.type, enabled=False):
        return tiles.backward(grad, grad_lse, q, k, v, out, lse, terms)


@tiled_backward.register_fake
def _(grad, grad_lse, q, k, v, out, lse, lo, hi, plan, rest, bias, sinks, seed, scale, softcap, dropout_p, round_scores):
    def like(t):
        return t.new_empty(t.shape)

    none = q.new_empty(0)
    return (
        like(q),
        like(k),
        like(v),
        like(bias) if bias is not None else none,
        like(sinks) if sinks is not None else none,
    )


def _save(ctx, inputs, output):
    q, k, v, lo, hi, plan, rest, bias, sinks, seed, scale, softcap, dropout_p, round_scores, need_lse, _ = inputs
    out, lse, weights = output
    ctx.mark_non_differentiable(weights)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, lo, hi, plan, rest, bias, sinks, seed)
    ctx.scalars = (scale, softcap, dropout_p, round_scores)
    ctx.has_lse = need_lse


def _backward(ctx, grad, grad_lse, _):
    q, k, v, out, lse, lo, hi, plan, rest, bias, sinks, seed = ctx.saved_tensors
    if not ctx.has_lse:
        raise RuntimeError("headway::tiled was run without its log-sum-exp; its backward needs need_lse=True")
    if grad is None:
        grad = torch.zeros_like(out)
    dq, dk, dv, dbias, dsinks = tiled_backward(
        grad, grad_lse, q, k, v, out, lse, lo, hi, plan, rest, bias, sinks, seed, *ctx.scalars
    )
    none = (None,) * 3
    return (
        dq, dk, dv, *none, None, dbias if bias is not None else None, dsinks if sinks is not None else None, None,
        *none, None, None, None,
    )  # fmt: skip


tiled.register_autograd(_backward, setup_context=_save)
