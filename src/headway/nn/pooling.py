"""One vector for each packed sequence: x (1, T, hidden), cu_seqlens (N + 1,) -> (N, hidden); zeros for an empty one."""

from __future__ import annotations

import torch
from torch import Tensor


def first(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The first token (CLS)."""
    return _of_each(x, cu_seqlens[:-1], cu_seqlens)


def last(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The last token."""
    return _of_each(x, cu_seqlens[1:] - 1, cu_seqlens)


def _of_each(x: Tensor, at: Tensor, cu_seqlens: Tensor) -> Tensor:
    if x.shape[1] == 0:
        return x.new_zeros(at.shape[0], x.shape[2])
    filled = (cu_seqlens.diff() > 0).unsqueeze(1)  # an empty sequence owns no token; its neighbour's is not its own
    return x[0, at.clamp(0, x.shape[1] - 1)].where(filled, 0)


def mean(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The mean over tokens, summed in fp32."""
    lengths = cu_seqlens.diff()
    token = torch.arange(x.shape[1], device=x.device)
    row = torch.searchsorted(cu_seqlens[1:].contiguous(), token, right=True)
    count = lengths.shape[0]
    sums = torch.zeros(count + 1, x.shape[2], dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    sums = sums.index_add(0, row, x[0].to(sums.dtype))[:count]  # the last row takes tokens beyond every sequence
    return (sums / lengths.clamp(min=1).unsqueeze(1)).to(x.dtype)


POOLINGS = {"cls": first, "mean": mean, "last": last}
