"""Where a mask is asked: a rectangle of the score matrix (`Grid`) or single entries (`Point`).

Both offer the same things, which is all that an atom's formula may use: `b`, `h`, `q_index`, `k_index`, `q_pos`,
`k_pos`, and look-ups of a tensor by batch row, query slot, key slot, or entry.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Grid:
    """Queries `q` and keys `k` (slices) of all batch rows and heads; everything broadcasts to (B, H, lq, lk)."""

    def __init__(self, bound, q: slice, k: slice):
        self.bound, self.q, self.k = bound, q, k
        device = bound.device
        self.b = torch.arange(bound.batch, device=device).view(-1, 1, 1, 1)
        self.h = torch.arange(bound.heads, device=device).view(1, -1, 1, 1)
        self.q_index = torch.arange(bound.q_len, device=device)[q].view(1, 1, -1, 1)
        self.k_index = torch.arange(bound.kv_len, device=device)[k].view(1, 1, 1, -1)
        self.q_pos = bound.q_pos[:, None, q, None]
        self.k_pos = bound.k_pos[:, None, None, k]

    def by_batch(self, t: Tensor) -> Tensor:
        return t.view(-1, 1, 1, 1)

    def by_query(self, t: Tensor) -> Tensor:
        return t[:, None, self.q, None]

    def by_key(self, t: Tensor) -> Tensor:
        return t[:, None, None, self.k]

    def by_entry(self, t: Tensor) -> Tensor:
        t = t if t.shape[2] == 1 else t[:, :, self.q]
        return t if t.shape[3] == 1 else t[..., self.k]


class Point:
    """Entries given by index tensors `b, h, q, k` of one shape (0-d under FlexAttention's vmap); `q_pos` is the bound's
    or, where queries just follow each other, the first of them: a mask_mod may look tensors up but not make them."""

    def __init__(self, bound, q_pos: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor):
        self.bound = bound
        self.b, self.h, self.q_index, self.k_index = b, h, q, k
        self.q_pos = q + q_pos if q_pos.dim() == 0 else self.by_query(q_pos)
        self.k_pos = k if bound.kv_positions is None else self.by_key(bound.k_pos)

    def _row(self, t: Tensor) -> Tensor | int:
        return self.b if t.shape[0] != 1 else 0

    def by_batch(self, t: Tensor) -> Tensor:
        return t[self._row(t)]

    def by_query(self, t: Tensor) -> Tensor:
        return t[self._row(t), self.q_index]

    def by_key(self, t: Tensor) -> Tensor:
        return t[self._row(t), self.k_index]

    def by_entry(self, t: Tensor) -> Tensor:
        head = self.h if t.shape[1] != 1 else 0
        q = self.q_index if t.shape[2] != 1 else 0
        k = self.k_index if t.shape[3] != 1 else 0
        return t[self._row(t), head, q, k]
