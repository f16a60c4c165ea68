"""MPNet has attention code of its own, with one relative bias for all layers. Unpadded, everything but attention is packed.

packed (1, T, hidden) -> q, k, v -> rows (B, H, L, D), bias (1, H, L, L), padding mask -> packed (1, T, hidden)
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from headway.attention import attention
from headway.attention.masks import padding
from headway.integrations.transformers.packing import within


def adapt(encoder) -> None:
    """Puts attention that understands packed tokens into each layer of an MPNetModel."""
    stack = encoder.encoder
    stack.compute_position_bias = partial(_position_bias, stack, stack.compute_position_bias)
    for layer in stack.layer:
        own = layer.attention.attn
        own.forward = partial(_attend, own, own.forward)


def _position_bias(stack, usual, x: Tensor, *args, **kwargs) -> Tensor:
    """(B, H, L, L), or (1, H, longest row, the same) for packed tokens."""
    index = within.index
    if index is None:
        return usual(x, *args, **kwargs)
    return usual(x.new_empty(1, index.length, 1))


def _attend(own, usual, hidden_states: Tensor, attention_mask=None, position_bias=None, output_attentions=False, **kwargs):
    index = within.index
    if index is None:
        return usual(hidden_states, attention_mask, position_bias=position_bias, output_attentions=output_attentions, **kwargs)

    def rows(x: Tensor) -> Tensor:
        return index.scatter(x).unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2)

    q, k, v = rows(own.q(hidden_states)), rows(own.k(hidden_states)), rows(own.v(hidden_states))
    real = index.scatter(torch.ones_like(hidden_states[..., :1]))[..., 0] > 0
    out = attention(
        q, k, v, mask=padding(real), bias=position_bias, scale=1.0 / math.sqrt(own.attention_head_size),
        dropout_p=own.dropout.p if own.training else 0.0,
    )  # fmt: skip
    return (own.o(index.gather(out.transpose(1, 2).flatten(2))),)
