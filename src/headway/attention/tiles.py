"""Exact attention by query tiles, forward and backward.

A tile is a run of query rows and the hull of the keys that they may see (`masks.bounds`). All scores of a tile are
computed at once, so the softmax is the plain one; what lies outside every hull is never computed, and inside one only
the strips at its edges need masking:

    causal        window        documents
    # . . .       # # . .       # # . .
    # # . .       # # # .       # # . .
    # # # .       . # # #       . . # #
    # # # #       . . # #       . . # #

The backward pass recomputes a tile's weights P from the saved log-sum-exp (Dao et al. 2022, FlashAttention, B.2):

    dV += (P Z)^T dO      dP = (dO V^T) Z      dS = P (dP - delta)      delta = rowsum(dO O) - dlse
    dQ = scale dS K       dK += scale dS^T Q                            Z = dropout choice, 0 or 1 / (1 - p)

Memory is one tile of scores, O(rows x Lk), besides inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Terms:
    """What makes scores and weights besides q and k."""

    lo: Tensor  # (Bt, Lq) int64 row bounds, Bt = B or 1
    hi: Tensor
    tiles: Tensor  # (Bt, Lq + 1, 6), see masks.bounds.tiles_of
    rest: Tensor | None  # bool, broadcastable to (B, Hq, Lq, Lk)
    bias: Tensor | None
    sinks: Tensor | None  # (Hq,)
    seed: Tensor | None
    scale: float
    softcap: float  # 0 = none
    dropout_p: float
    round_scores: bool


class Tile:
    """Query rows [q0, q1) against keys [k0, k1) for batch rows [b0, b1).

    Key/value heads are the batch of its matrix products, and the query heads of a group are rows of one product:
    n = (b1 - b0) * Hkv matrices of m = group * (q1 - q0) rows.
    """

    def __init__(self, terms: Terms, q: Tensor, k: Tensor, v: Tensor, b: slice, q0: int, q1: int, plan: list[int]):
        _, k0, k1, self.clean0, self.clean1, self.has_empty = plan
        self.terms, self.b, self.q0, self.q1, self.k0, self.k1 = terms, b, q0, q1, k0, k1
        self.dtype, self.work, self.scratch = q.dtype, k.dtype, k
        self.heads, kv_heads = q.shape[1], k.shape[1]
        rows = slice(b.start * kv_heads, b.stop * kv_heads)
        self.n, self.m = rows.stop - rows.start, self.heads // kv_heads * (q1 - q0)
        self.given_q = q
        self.k = k.flatten(0, 1)[rows, k0:k1]  # (n, nk, D)
        self.v = v.flatten(0, 1)[rows, k0:k1]

    @cached_property
    def q(self) -> Tensor:  # (n, m, D)
        return self.merge(self.given_q)

    def rows(self, x: Tensor) -> Tensor:
        """The tile's part of a (B, Hq, Lq, c) tensor."""
        return x[self.b, :, self.q0 : self.q1]

    def merge(self, x: Tensor) -> Tensor:
        """The tile's part of (B, Hq, Lq, c) as (n, m, c) in the working precision."""
        return self.rows(x).to(self.work).reshape(self.n, self.m, x.shape[-1])

    def split(self, x: Tensor) -> Tensor:
        """(n, m, c) as (b1 - b0, Hq, q1 - q0, c)."""
        return x.view(self.b.stop - self.b.start, self.heads, self.q1 - self.q0, x.shape[-1])

    def part(self, x: Tensor) -> Tensor:
        """The tile's part of something broadcastable to (B, Hq, Lq, Lk)."""
        x = x if x.shape[0] == 1 else x[self.b]
        x = x if x.shape[2] == 1 else x[:, :, self.q0 : self.q1]
        return x if x.shape[3] == 1 else x[..., self.k0 : self.k1]

    def scores(self, keep_tanh: bool = False) -> tuple[Tensor, Tensor | None]:
        """(n, m, nk) scores, -inf where masked; and tanh(s / softcap), if there is a cap and it is asked for."""
        t, tanh = self.terms, None
        s = self.scratch[: self.n * self.m * (self.k1 - self.k0)].view(self.n, self.m, self.k1 - self.k0)
        alpha = t.scale / t.softcap if t.softcap else t.scale
        torch.baddbmm(s, self.q, self.k.transpose(1, 2), beta=0.0, alpha=alpha, out=s)
        if t.softcap:
            s.tanh_()
            tanh = s.clone() if keep_tanh else None
            s.mul_(t.softcap)
        by_head = self.split(s)
        if t.bias is not None:
            by_head.add_(self.part(t.bias))
        if t.round_scores:
            s.copy_(s.to(self.dtype))
        self._mask(by_head)
        return s, tanh

    def _mask(self, s: Tensor) -> None:
        if self.clean0 >= self.clean1:
            self._mask_columns(s, self.k0, self.k1)
        else:
            self._mask_columns(s, self.k0, self.clean0)
            self._mask_columns(s, self.clean1, self.k1)
        if self.terms.rest is not None:
            s.masked_fill_(~self.part(self.terms.rest), -torch.inf)

    def _mask_columns(self, s: Tensor, c0: int, c1: int) -> None:
        if c0 >= c1:
            return
        lo, hi = self.terms.lo, self.terms.hi
        row = self.b.start if lo.shape[0] > 1 else 0
        lo, hi = lo[row, self.q0 : self.q1, None], hi[row, self.q0 : self.q1, None]
        column = torch.arange(c0, c1, device=s.device)
        outside = s.new_zeros(self.q1 - self.q0, c1 - c0).masked_fill_((column < lo) | (column >= hi), -torch.inf)
        s[..., c0 - self.k0 : c1 - self.k0].add_(outside)  # broadcast addition is vectorised, masked_fill_ is not

    @property
    def is_clean(self) -> bool:
        """Whether every query of the tile sees every key of it."""
        return self.k0 < self.k1 and self.clean0 <= self.k0 and self.clean1 >= self.k1

    @property
    def may_be_empty(self) -> bool:
        """Whether some row may have nothing to attend to."""
        return bool(self.has_empty) or self.terms.rest is not None or self.terms.bias is not None

    def sinks(self) -> Tensor:
        """(n, m, 1): the sink logit of each row."""
        sinks = self.terms.sinks.to(self.work)[None, :, None, None]  # type: ignore[union-attr]
        return sinks.expand(self.b.stop - self.b.start, -1, self.q1 - self.q0, 1).reshape(self.n, self.m, 1)

    def dropout(self) -> Tensor:
        """(n, m, nk): 0 or 1 / (1 - p), the same whenever it is asked for."""
        t = self.terms
        seed = int(t.seed) + 1_000_003 * self.b.start + self.q0  # type: ignore[arg-type]
        generator = torch.Generator(self.k.device).manual_seed(seed % 2**63)
        kept = self.k.new_empty(self.n, self.m, self.k1 - self.k0)
        return kept.bernoulli_(1.0 - t.dropout_p, generator=generator).div_(1.0 - t.dropout_p)


def tiles_in(terms: Terms, q: Tensor, k: Tensor, v: Tensor, scores: bool = True) -> Iterator[Tile]:
    """The tiles of a call, with one scratch buffer for the scores of all of them. k and v in the working precision.

    `scores` = False: those of clean tiles are not wanted, so the buffer need not hold them.
    """
    batch, q_len = q.shape[0], q.shape[2]
    plans = []
    for i in range(terms.tiles.shape[0]):
        b = slice(0, batch) if terms.tiles.shape[0] == 1 else slice(i, i + 1)
        plan = [row for row in terms.tiles[i].tolist() if row[0] < q_len]
        ends = [row[0] for row in plan[1:]] + [q_len]
        plans += [(b, row[0], end, row) for row, end in zip(plan, ends)]
    found = [Tile(terms, q, k, v, b, q0, q1, row) for b, q0, q1, row in plans]
    sizes = [t.n * t.m * (t.k1 - t.k0) for t in found if scores or not t.is_clean]
    scratch = k.new_empty(max(sizes, default=0))
    for tile in found:
        tile.scratch = scratch
        yield tile


def forward(q: Tensor, k: Tensor, v: Tensor, terms: Terms, need_lse: bool, need_weights: bool):
    """out (B, Hq, Lq, Dv) like q; lse (B, Hq, Lq) and weights (B, Hq, Lq, Lk) in the working precision, or empty."""
    work = torch.promote_types(q.dtype, torch.float32)
    given, k, v = (k, v), k.to(work), v.to(work)
    whole = not need_weights and _serves_whole_tiles(terms, q, v)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = k.new_empty((*q.shape[:3], 1) if need_lse else 0)
    weights = k.new_zeros((*q.shape[:3], k.shape[2]) if need_weights else 0)
    for tile in tiles_in(terms, q, k, v, scores=not whole):
        if whole and tile.is_clean:
            o4, lse3 = _whole_tile(tile, q, *given)
            tile.rows(out).copy_(o4)
            if need_lse:
                tile.rows(lse).copy_(lse3.unsqueeze(-1))
            continue
        o, total, p = _forward_tile(tile, need_lse)
        tile.rows(out).copy_(tile.split(o))
        if need_lse:
            tile.rows(lse).copy_(tile.split(total))  # type: ignore[arg-type]
        if need_weights:
            tile.rows(weights)[..., tile.k0 : tile.k1] = tile.split(p)
    return out, lse.squeeze(-1), weights


def _serves_whole_tiles(terms: Terms, q: Tensor, v: Tensor) -> bool:
    """Whether PyTorch's CPU flash kernel means the same for a tile that needs no masking."""
    extras = (terms.rest, terms.bias, terms.sinks, terms.seed)
    if q.device.type != "cpu" or q.shape[3] != v.shape[3] or terms.softcap or terms.round_scores:
        return False
    return all(x is None for x in extras)


def _whole_tile(tile: Tile, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, (b1 - b0, Hq, q1 - q0, ...), of a tile whose queries see all of its keys."""
    k, v = k[tile.b, :, tile.k0 : tile.k1], v[tile.b, :, tile.k0 : tile.k1]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(tile.rows(q), k, v, scale=tile.terms.scale)


def _forward_tile(tile: Tile, need_lse: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Output (n, m, Dv), log-sum-exp (n, m, 1) if asked for, and weights after dropout, sinks included."""
    sinks = tile.terms.sinks is not None
    if tile.k0 == tile.k1:
        o = tile.v.new_zeros(tile.n, tile.m, tile.v.shape[2])
        return o, tile.sinks() if sinks else torch.full_like(o[..., :1], -torch.inf), o[..., :0]
    s, _ = tile.scores()
    top = s.amax(-1, keepdim=True) if need_lse or sinks or tile.may_be_empty else None
    p = torch.softmax(s, -1, out=s)
    total = None
    if top is not None:
        empty = top == -torch.inf
        if tile.may_be_empty:
            p.masked_fill_(empty, 0.0)
        if need_lse or sinks:  # the largest weight is exp(top - total)
            total = (top - p.amax(-1, keepdim=True).log_()).masked_fill_(empty, -torch.inf)
    if sinks:  # the sink takes its share of every row
        with_sink = torch.logaddexp(total, tile.sinks())  # type: ignore[arg-type]
        p.mul_(torch.exp(total - with_sink))  # type: ignore[operator]
        total = with_sink
    if tile.terms.dropout_p:
        p.mul_(tile.dropout())
    return torch.bmm(p, tile.v), total, p


def backward(grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, terms: Terms):
    """Gradients of q, k, v, bias (like it, or empty) and sinks (or empty)."""
    work = torch.promote_types(q.dtype, torch.float32)
    k, v = k.to(work), v.to(work)
    delta = (grad.to(work) * out.to(work)).sum(-1, keepdim=True)  # (B, Hq, Lq, 1)
    if grad_lse is not None:
        delta -= grad_lse.unsqueeze(-1)
    lse = lse.unsqueeze(-1)
    lse = torch.where(lse == -torch.inf, torch.inf, lse)  # an empty row: exp(s - inf) = 0
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = k.new_zeros(k.shape).flatten(0, 1), v.new_zeros(v.shape).flatten(0, 1)
    bias, sinks = terms.bias, terms.sinks
    dbias = k.new_zeros(bias.shape if bias is not None else 0)
    for tile in tiles_in(terms, q, k, v):
        if tile.k0 == tile.k1:
            tile.rows(dq).zero_()
            continue
        s, tanh = tile.scores(keep_tanh=True)
        p = s.sub_(tile.merge(lse)).exp_()
        do = tile.merge(grad)
        dp = torch.bmm(do, tile.v.transpose(1, 2))
        columns = (slice(tile.b.start * k.shape[1], tile.b.stop * k.shape[1]), slice(tile.k0, tile.k1))
        if terms.dropout_p:
            kept = tile.dropout()
            dp.mul_(kept)
            dv[columns].baddbmm_(kept.mul_(p).transpose(1, 2), do)
        else:
            dv[columns].baddbmm_(p.transpose(1, 2), do)
        ds = dp.sub_(tile.merge(delta)).mul_(p)
        if bias is not None:
            _add_reduced(tile.part(dbias), tile.split(ds))
        if tanh is not None:
            ds.addcmul_(ds, tanh.square_(), value=-1.0)  # d softcap = 1 - tanh^2
        tile.rows(dq).copy_(tile.split(torch.bmm(ds, tile.k).mul_(terms.scale)))
        dk[columns].baddbmm_(ds.transpose(1, 2), tile.q, alpha=terms.scale)
    dsinks = k.new_zeros(sinks.shape if sinks is not None else 0)
    if sinks is not None:
        dsinks = -(torch.exp(sinks.to(work).view(1, -1, 1, 1) - lse) * delta).sum((0, 2, 3)).to(sinks.dtype)
    return (
        dq,
        dk.view(k.shape).to(q.dtype),
        dv.view(v.shape).to(q.dtype),
        dbias.to(bias.dtype) if bias is not None else dbias,
        dsinks,
    )


def _add_reduced(into: Tensor, x: Tensor) -> None:
    """Adds x to `into`, summed over the dimensions that `into` broadcasts."""
    dims = [i for i in range(4) if into.shape[i] == 1 and x.shape[i] != 1]
    into.add_(x.sum(dims, keepdim=True) if dims else x)
