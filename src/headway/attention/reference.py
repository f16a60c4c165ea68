"""Attention as defined: float64, dense, no cleverness, every feature. Everything else is held against this.

    s = scale * (q . k)
    s = softcap * tanh(s / softcap)          if softcap is given
    s = s + bias
    s = -inf where the mask is False
    p = softmax over [s, sink]               one unscaled logit per head that takes mass and gives no value
    p = dropout(p) / (1 - p_drop)
    o = p . v

A row with nothing to attend to gives 0, log-sum-exp -inf (the sink logit if there is one) and zero gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention.masks import BoundMask, Mask
from headway.attention.result import AttentionResult


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | BoundMask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sink_logits: Tensor | None = None,
    keep: Tensor | None = None,
    dropout_p: float = 0.0,
    q_positions: Tensor | None = None,
    kv_positions: Tensor | None = None,
) -> AttentionResult:
    """The definition, in float64, with gradients by autograd.

    Args: query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv). bias broadcasts to (B, Hq, Lq, Lk),
    sink_logits (Hq,). Dropout takes its choice from `keep` (B, Hq, Lq, Lk), True = kept, with probability 1 - dropout_p.
    Returns output (B, Hq, Lq, Dv), lse (B, Hq, Lq), weights (B, Hq, Lq, Lk) after dropout, all float64.
    """
    q, k, v = query.double(), key.double(), value.double()
    batch, heads, q_len, _ = q.shape
    kv_len = k.shape[2]
    group = heads // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # head h reads h // group

    s = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.transpose(-1, -2))
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.double()
    if isinstance(mask, Mask):
        mask = mask.bind(
            q_len,
            kv_len,
            batch=batch,
            heads=heads,
            q_positions=q_positions,
            kv_positions=kv_positions,
            device=q.device,
        )
    if isinstance(mask, BoundMask):
        s = s.masked_fill(~mask.to_bool(), -torch.inf)
    if sink_logits is not None:
        sink = sink_logits.double().view(1, -1, 1, 1).expand(batch, -1, q_len, 1)
        s = torch.cat([s, sink], dim=-1)

    empty = (s == -torch.inf).all(dim=-1, keepdim=True)
    p = torch.softmax(s.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)[..., :kv_len]
    lse = torch.logsumexp(s.masked_fill(empty, 0.0), dim=-1).masked_fill(empty[..., 0], -torch.inf)
    if keep is not None:
        p = p * keep / (1.0 - dropout_p)
    return AttentionResult(p @ v, lse, p)
