"""`headway explain`: which backend would run, and why."""

from __future__ import annotations

import torch

from headway.attention import AttentionSpec, plan_attention
from headway.attention.masks.normal import kind_of
from headway.checkpoints.load import _dtype
from headway.cli.mask import parse
from headway.errors import InputError


def run(model, attention, q_len, kv_len, heads, kv_heads, head_dim, dtype, device, mask, softcap, train) -> None:
    if model is not None:
        print(of_model(model, attention, q_len))
        return
    kv_len, kv_heads = kv_len or q_len, kv_heads or heads
    if heads % kv_heads:
        raise InputError(f"{heads} query heads are no multiple of {kv_heads} key/value heads")
    spec = AttentionSpec(
        dtype=_dtype(dtype) or torch.float32, device=device, capability=(9, 0) if device == "cuda" else None,
        head_dim=head_dim, value_dim=head_dim, group=heads // kv_heads, decode=q_len == 1, square=q_len == kv_len,
        needs_grad=train, mask=kind_of(None if mask is None else parse(mask)), softcap=softcap is not None,
    )  # fmt: skip
    try:
        print(plan_attention(spec, attention).explain((1, heads, q_len, kv_len)))
    except ValueError as error:
        raise InputError(str(error)) from None


def of_model(ref: str, attention: str, length: int) -> str:
    """The plans of one forward pass of a model over a padded batch of two rows."""
    from headway.checkpoints.load import load

    try:
        model = load(ref, attention=attention)
    except ValueError as error:
        raise InputError(str(error)) from None
    ids = torch.full((2, length), 5 % model.config.vocab_size)
    real = torch.ones_like(ids)
    real[1, length // 2 :] = 0
    return model.attention.explain({"input_ids": ids, "attention_mask": real})
