"""Masks are an algebra: constructors here, combined with `&`, `|`, `~`.

Pictures show queries as rows and keys as columns, `#` = attends; two queries on five keys, and five on two. Queries
stand at the last positions (bottom-right alignment) unless a call passes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headway.attention.masks.atoms import Band, Chunk, CuSegments, Dense, KeyRange, Predicate, Prefix, Segments
from headway.attention.masks.bound import BoundMask
from headway.attention.masks.expr import Mask, checked

__all__ = [
    "Band", "BoundMask", "Mask", "causal", "checked", "chunked", "dense", "documents", "lengths", "padding", "predicate",
    "prefix", "sliding", "sliding_bidirectional", "window",
]  # fmt: skip


def _count(value, name: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, {value!r} was given")
    return value


def _integers(t: Any, name: str) -> Tensor:
    t = torch.as_tensor(t)
    if t.dtype.is_floating_point or t.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, {t.dtype} was given")
    return t


def causal() -> Mask:
    """No key after the query: `k <= q`.

    q=2/k=5  # # # # .    q=5/k=2  . .
             # # # # #             . .
                                   . .
                                   # .
                                   # #
    """
    return Band(None, 0)


def window(left: int | None = None, right: int | None = None) -> Mask:
    """Inclusive distances: `q - left <= k <= q + right`; None is unbounded. Below: window(1, 0).

    q=2/k=5  . . # # .    q=5/k=2  . .
             . . . # #             . .
                                   . .
                                   # .
                                   # #
    """
    return Band(
        None if left is None else _count(left, "window(left)"),
        None if right is None else _count(right, "window(right)"),
    )


def sliding(*, total: int) -> Mask:
    """Causal with `total` keys including the query's own (Mistral, Gemma 2): window(total - 1, 0). Below: total=3.

    q=2/k=5  . # # # .    q=5/k=2  . .
             . . # # #             . .
                                   . .
                                   # .
                                   # #
    """
    return Band(_count(total, "sliding(total=)", least=1) - 1, 0)


def sliding_bidirectional(*, radius: int) -> Mask:
    """`|q - k| <= radius` (ModernBERT: local_attention 128 is radius 64, 129 keys). Below: radius=1.

    q=2/k=5  . . # # #    q=5/k=2  . .
             . . . # #             . .
                                   # .
                                   # #
                                   # #
    """
    radius = _count(radius, "sliding_bidirectional(radius=)")
    return Band(radius, radius)


def prefix(lengths: Tensor | int) -> Mask:
    """Every query sees positions below `lengths` (B,). Combine: `causal() | prefix(n)` is a prefix LM. Below: 2 of it.

    q=2/k=5  # # . . .    q=5/k=2  # #
             # # . . .             # #
                                   # #
                                   # #
                                   # #
    """
    return Prefix(_integers(lengths, "prefix(lengths)").reshape(-1))


def chunked(size: int) -> Mask:
    """Queries and keys in the same block of `size` positions (Llama 4). Below: chunked(2).

    q=2/k=5  . . # # .    q=5/k=2  . .
             . . . . #             . .
                                   . .
                                   # #
                                   # #
    """
    return Chunk(_count(size, "chunked(size)", least=1))


class _Documents:
    """Queries see the keys of their own document. `documents(q_ids, kv_ids=None)`: ids (L,) or (B, L), each document one
    contiguous run, ids below 0 in none. `documents.from_cu_seqlens(cu_q, cu_kv=None)`: cumulative lengths, (N + 1,),
    from 0; slots from the last on are in none. Below: q_ids = 0 1, kv_ids = 0 0 1 1 1; and 0 0 1 1 1 on 0 1.

    q=2/k=5  # # . . .    q=5/k=2  # .
             . . # # #             # .
                                   . #
                                   . #
                                   . #
    """

    def __call__(self, q_ids: Tensor, kv_ids: Tensor | None = None) -> Mask:
        q = self._ids(q_ids, "documents(q_ids)")
        return Segments(q, q if kv_ids is None else self._ids(kv_ids, "documents(kv_ids)"))

    @staticmethod
    def _ids(ids, name: str) -> Tensor:
        ids = _integers(ids, name)
        if ids.dim() not in (1, 2):
            raise ValueError(f"{name} must have shape (L,) or (B, L), {tuple(ids.shape)} was given")
        return ids if ids.dim() == 2 else ids[None]

    def from_cu_seqlens(self, cu_q: Tensor, cu_kv: Tensor | None = None) -> Mask:
        q = _integers(cu_q, "cu_seqlens")
        kv = q if cu_kv is None else _integers(cu_kv, "cu_seqlens of the keys")
        for cu in (q, kv):
            if cu.dim() != 1 or cu.shape[0] < 1:
                raise ValueError(f"cu_seqlens must have shape (documents + 1,), {tuple(cu.shape)} was given")
        return CuSegments(q, kv)


documents = _Documents()


def lengths(kv: Tensor | int | None = None, q: Tensor | int | None = None) -> Mask:
    """Only the first `kv[b]` keys and the first `q[b]` queries of each batch row are real. Below: kv=3, q=1; then kv=1.

    q=2/k=5  # # # . .    q=5/k=2  # .
             . . . . .             # .
                                   # .
                                   # .
                                   # .
    """
    if kv is None and q is None:
        raise ValueError("lengths(kv=, q=) needs at least one of the two")
    kv = None if kv is None else _integers(kv, "lengths(kv=)").reshape(-1)
    q = None if q is None else _integers(q, "lengths(q=)").reshape(-1)
    return KeyRange(kv, q)


def padding(real: Tensor) -> Mask:
    """A padding mask (B, Lk), bool, True = real token: only real keys are seen. Below: 0 1 1 1 0, and 0 1.

    q=2/k=5  . # # # .    q=5/k=2  . #
             . # # # .             . #
                                   . #
                                   . #
                                   . #
    """
    if not isinstance(real, Tensor) or real.dtype != torch.bool or real.dim() != 2:
        given = f"{real.dtype} of shape {tuple(real.shape)}" if isinstance(real, Tensor) else type(real).__name__
        raise TypeError(f"padding needs a bool tensor (B, Lk), True = real token, {given} was given; convert with .bool()")
    return Dense(real[:, None, None, :])


def dense(allowed: Tensor) -> Mask:
    """A bool tensor, True = attend, that broadcasts to (B, H, Lq, Lk). It sees slots, not positions. Below: a diagonal.

    q=2/k=5  # . . . .    q=5/k=2  # .
             . # . . .             . #
                                   . .
                                   . .
                                   . .
    """
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        given = str(allowed.dtype) if isinstance(allowed, Tensor) else type(allowed).__name__
        raise TypeError(
            f"dense needs a bool tensor, True = attend, {given} was given; an additive float tensor goes into bias=, "
            "and one of 0 and -inf is dense(tensor == 0)"
        )
    if not 2 <= allowed.dim() <= 4:
        raise ValueError(f"dense needs (Lq, Lk), (B, Lq, Lk) or (B, H, Lq, Lk), {tuple(allowed.shape)} was given")
    if allowed.dim() == 3:
        allowed = allowed[:, None]
    return Dense(allowed if allowed.dim() == 4 else allowed[None, None])


def predicate(fn: Callable[..., Any], tensors: tuple[Tensor, ...] = ()) -> Mask:
    """Keeps where `fn(b, h, q, k, *tensors)` is true; q and k are positions, all four are integer tensors that broadcast.

    `fn` must be elementwise (comparisons, arithmetic, indexing of `tensors`). Below: (q + k) % 2 == 0.

    q=2/k=5  . # . # .    q=5/k=2  . #
             # . # . #             # .
                                   . #
                                   # .
                                   . #
    """
    if not callable(fn):
        raise TypeError(f"predicate needs a function (b, h, q, k, *tensors) -> bool, {type(fn).__name__} was given")
    return Predicate(fn, tuple(tensors))
