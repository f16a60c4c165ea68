"""A mask bound to one call: lengths, positions, device. Every lowering is computed once and shared by all layers."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention.masks import bounds
from headway.attention.masks.atoms import CuSegments, Dense, KeyRange, Prefix, Segments, document_ids
from headway.attention.masks.expr import And, Mask, Not, Or
from headway.attention.masks.normal import normalise
from headway.attention.masks.place import Grid, Point


class BoundMask:
    """A `Mask` together with a call's shape. Make one with `mask.bind(...)`; pass it to `attention` in many layers."""

    def __init__(self, mask: Mask, q_len, kv_len, batch, heads, q_positions, kv_positions, device):
        self.mask, self.q_len, self.kv_len, self.batch, self.heads = mask, q_len, kv_len, batch, heads
        self.device = device if device is not None else _device_of(mask)
        self.q_positions = _positions(q_positions, q_len, batch, "q_positions")
        self.kv_positions = _positions(kv_positions, kv_len, batch, "kv_positions")
        self.offset = kv_len - q_len  # bottom-right alignment
        self.terms = normalise(mask)
        self.kind, self.tensor_mask = bounds.ordered_kind(mask, kv_positions is not None)
        self.memo: dict = {}
        check_lengths(mask, self)

    @property
    def q_pos(self) -> Tensor:
        """(B or 1, Lq) positions of the queries."""
        if self.q_positions is not None:
            return self.q_positions
        return torch.arange(self.q_len, device=self.device)[None] + self.offset

    @property
    def k_pos(self) -> Tensor:
        """(B or 1, Lk) positions of the keys."""
        if self.kv_positions is not None:
            return self.kv_positions
        return torch.arange(self.kv_len, device=self.device)[None]

    def once(self, key, make):
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def to_bool(self, q: slice = slice(None), k: slice = slice(None)) -> Tensor:
        """Boolean tensor (B or 1, H or 1, lq, lk), True = attend, for a slice of the queries and keys."""
        whole = q == slice(None) and k == slice(None)
        return self.once("bool", lambda: self._bool(q, k)) if whole else self._bool(q, k)

    def _bool(self, q: slice, k: slice) -> Tensor:
        at = Grid(self, q, k)
        kept = self.mask.keep(at)
        return kept.expand(kept.shape[0], kept.shape[1], at.q_index.shape[2], at.k_index.shape[3])

    def to_row_bounds(self) -> tuple[Tensor, Tensor] | None:
        """`(lo, hi)`, int64 (B or 1, Lq): query q sees key slots lo <= k < hi. None if the mask is no such interval."""
        return self.once("rows", lambda: bounds.row_bounds(self.terms, self))

    def to_hull_and_rest(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """`(lo, hi, rest)`: the mask is the interval and, where `rest` is not None, also that boolean tensor.

        `rest` is broadcastable to (B, H, Lq, Lk) and as small as the mask allows: (B, 1, 1, Lk) for padding.
        """
        return self.once("hull", self._hull_and_rest)

    def _hull_and_rest(self):
        exact = self.to_row_bounds()
        if exact is not None:
            return (*exact, None)
        lo, hi = bounds.hull_bounds(self.terms, self)
        if len(self.terms) == 1 and self.kv_positions is None:
            at, rest = Grid(self, slice(None), slice(None)), None
            for literal in self.terms[0].other:
                kept = literal.keep(at)
                rest = kept if rest is None else rest & kept
            return lo, hi, rest
        return lo, hi, self.to_bool()

    def to_tiles(self, rows: int) -> Tensor:
        """The tile plan of the row bounds (see `bounds.tiles_of`)."""
        lo, hi, _ = self.to_hull_and_rest()
        return self.once(("tiles", rows), lambda: bounds.tiles_of(lo, hi, rows))

    def to_cu_seqlens(self) -> tuple[Tensor, Tensor] | None:
        """`(cu_q, cu_kv)` int32 if the mask is documents by cumulative lengths (and at most a band); else None."""
        if len(self.terms) != 1 or self.terms[0].other or self.q_positions is not None or self.kv_positions is not None:
            return None
        cu = [m for m in self.terms[0].slotted if isinstance(m, CuSegments)]
        if len(cu) != 1 or len(self.terms[0].slotted) != 1:
            return None
        return cu[0].cu_q.int(), cu[0].cu_kv.int()

    def to_mask_mod(self):
        """The mask as FlexAttention's `mask_mod(b, h, q, k)` over slots."""
        mask, q_pos = _by_ids(self.mask, self), self.q_positions
        if q_pos is None:
            q_pos = torch.full((), self.offset, device=self.device)
        return lambda b, h, q, k: mask.keep(Point(self, q_pos, b, h, q, k))

    def to_block_mask(self, block: int = 128):
        """The mask as FlexAttention's `BlockMask`."""
        from headway.attention.masks.blocks import block_mask

        return self.once(("blocks", block), lambda: block_mask(self, block))

    def draw(self) -> str:
        from headway.attention.masks.draw import draw_bound

        return draw_bound(self)


def _atoms(mask: Mask):
    if isinstance(mask, And | Or):
        for part in mask.parts:
            yield from _atoms(part)
    elif isinstance(mask, Not):
        yield from _atoms(mask.part)
    else:
        yield mask


def _by_ids(mask: Mask, bound: BoundMask) -> Mask:
    """The same mask with documents by ids: a look-up, which is all that a mask_mod may do."""
    if isinstance(mask, CuSegments):
        return Segments(document_ids(mask.cu_q, bound.q_len), document_ids(mask.cu_kv, bound.kv_len))
    if isinstance(mask, Not):
        return Not(_by_ids(mask.part, bound))
    if isinstance(mask, And | Or):
        return type(mask)(tuple(_by_ids(p, bound) for p in mask.parts))
    return mask


def _device_of(mask: Mask):
    for atom in _atoms(mask):
        for name in atom.data_fields:
            value = getattr(atom, name)
            for t in value if isinstance(value, tuple) else (value,):
                if isinstance(t, Tensor):
                    return t.device
    return torch.device("cpu")


def _positions(given: Tensor | None, length, batch, name: str) -> Tensor | None:
    if given is None:
        return None
    if given.dtype.is_floating_point or given.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, {given.dtype} was given")
    if given.dim() == 1:
        given = given[None]
    if given.dim() != 2 or given.shape[1] != length or (given.shape[0] != 1 and given.shape[0] != batch):
        raise ValueError(
            f"{name} of shape {tuple(given.shape)} does not fit; accepted are ({length},), (1, {length}) "
            f"and ({batch}, {length})"
        )
    return given.long()


def check_lengths(mask: Mask, bound: BoundMask) -> None:
    """Raises ValueError where a part of the mask was made for another batch or other lengths than the call's."""
    for atom in _atoms(mask):
        if isinstance(atom, Segments):
            _fits("documents(q_ids)", atom.q_ids, (bound.batch, bound.q_len))
            _fits("documents(kv_ids)", atom.kv_ids, (bound.batch, bound.kv_len))
        elif isinstance(atom, Dense):
            _fits(
                "dense/padding mask",
                atom.allowed,
                (bound.batch, bound.heads, bound.q_len, bound.kv_len),
                broadcast=True,
            )
        elif isinstance(atom, CuSegments):
            if atom.cu_q.shape != atom.cu_kv.shape:
                raise ValueError(
                    f"documents: {atom.cu_q.shape[0] - 1} query and {atom.cu_kv.shape[0] - 1} key documents; "
                    "give both the same number"
                )
            bounds.check_total(atom.cu_q, bound.q_len, "queries")
            bounds.check_total(atom.cu_kv, bound.kv_len, "keys")
        elif isinstance(atom, KeyRange):
            for name, t in (("lengths(kv=)", atom.kv), ("lengths(q=)", atom.q)):
                if t is not None:
                    _fits(name, t, (bound.batch,))
        elif isinstance(atom, Prefix):
            _fits("prefix(lengths)", atom.lengths, (bound.batch,))


def _fits(what: str, t: Tensor, want: tuple, broadcast: bool = False) -> None:
    ok = t.dim() == len(want)
    for i, n in enumerate(want):
        if not ok:
            break
        one = i == 0 or broadcast
        ok = bool(t.shape[i] == n) or (one and bool(t.shape[i] == 1))
    if not ok:
        raise ValueError(
            f"this mask was made for another length: {what} has shape {tuple(t.shape)}, the call needs {tuple(want)}"
            + (" (or 1 where it broadcasts)" if broadcast else "")
        )
