"""The atoms that every mask is made of, each with the one formula that says what it keeps.

A formula is written once, against a `Place`: an object that knows which (batch, head, query, key) entries are being
asked about. Two kinds of place exist: `Grid` (a rectangle of the score matrix, everything broadcast) and `Point` (one
entry, or a vmapped batch of entries, as FlexAttention asks). See `place.py`.

Positions (`q_pos`, `k_pos`) belong to the call; indices (`q_index`, `k_index`) are storage slots. Causality, windows,
prefixes and chunks speak of positions; lengths, documents and dense masks speak of slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.attention.masks.expr import Mask, register


@register()
@dataclass(frozen=True, eq=False)
class Band(Mask):
    """Keeps `-left <= k_pos - q_pos <= right`; None is unbounded. A negative bound moves the band off the diagonal."""

    left: int | None
    right: int | None

    def keep(self, at) -> Tensor:
        distance = at.k_pos - at.q_pos
        if self.left is None and self.right is None:
            return torch.ones_like(distance, dtype=torch.bool)
        if self.left is None:
            return distance <= self.right
        if self.right is None:
            return distance >= -self.left
        return (distance >= -self.left) & (distance <= self.right)


@register()
@dataclass(frozen=True, eq=False)
class Chunk(Mask):
    """Keeps keys whose position lies in the same block of `size` positions as the query's (Llama 4's local layers)."""

    size: int

    def keep(self, at) -> Tensor:
        return at.q_pos.div(self.size, rounding_mode="floor") == at.k_pos.div(self.size, rounding_mode="floor")


@register("lengths")
@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Keeps `k_pos < lengths[b]`: every query sees the prefix (prefix language models)."""

    lengths: Tensor  # (B,)

    def keep(self, at) -> Tensor:
        return at.k_pos < at.by_batch(self.lengths)


@register("q_ids", "kv_ids")
@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """Keeps `q_ids[b, q] == kv_ids[b, k]`, both >= 0. Each document is one contiguous run of slots."""

    q_ids: Tensor  # (B or 1, Lq)
    kv_ids: Tensor  # (B or 1, Lk)

    def keep(self, at) -> Tensor:
        q, k = at.by_query(self.q_ids), at.by_key(self.kv_ids)
        return (q == k) & (k >= 0)


@register("cu_q", "cu_kv")
@dataclass(frozen=True, eq=False)
class CuSegments(Mask):
    """Documents by cumulative lengths: document i is slots `cu[i]` to `cu[i+1]`. Slots from `cu[-1]` on are in none."""

    cu_q: Tensor  # (N + 1,)
    cu_kv: Tensor  # (N + 1,)

    def keep(self, at) -> Tensor:
        q = at.by_query(document_ids(self.cu_q, at.bound.q_len))
        k = at.by_key(document_ids(self.cu_kv, at.bound.kv_len))
        return (q == k) & (k >= 0)


@register("kv", "q")
@dataclass(frozen=True, eq=False)
class KeyRange(Mask):
    """Keeps slots below the true length of each batch row: `k_index < kv[b]` and `q_index < q[b]`; None is no bound."""

    kv: Tensor | None  # (B,)
    q: Tensor | None  # (B,)

    def keep(self, at) -> Tensor:
        kept = torch.ones_like(at.k_index, dtype=torch.bool)
        if self.kv is not None:
            kept = kept & (at.k_index < at.by_batch(self.kv))
        if self.q is not None:
            kept = kept & (at.q_index < at.by_batch(self.q))
        return kept


@register("allowed")
@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A boolean tensor, True = attend, broadcastable to (B, H, Lq, Lk)."""

    allowed: Tensor  # 4-D

    def keep(self, at) -> Tensor:
        return at.by_entry(self.allowed)


@register("tensors")
@dataclass(frozen=True, eq=False)
class Predicate(Mask):
    """Keeps where `fn(b, h, q_pos, k_pos, *tensors)` is true. `fn` is elementwise and knows only what it is given."""

    fn: Callable[..., Any]
    tensors: tuple[Tensor, ...] = ()

    def keep(self, at) -> Tensor:
        kept = self.fn(at.b, at.h, at.q_pos, at.k_pos, *self.tensors)
        if not isinstance(kept, Tensor):
            kept = torch.as_tensor(kept, device=at.k_pos.device)
        return kept.to(torch.bool)


def document_ids(cu: Tensor, length: int) -> Tensor:
    """(1, length) int64: the document of each slot by cumulative lengths, -1 beyond the last."""
    index = torch.arange(length, device=cu.device)
    doc = torch.searchsorted(cu[1:].long().contiguous(), index, right=True)
    return torch.where(doc < cu.shape[0] - 1, doc, -1)[None]
