"""Row bounds: the interval of key slots `[lo, hi)` that each query may attend to, and the tiles made from them.

         k 0 1 2 3 4        causal, q=2 / k=5            lo, hi
    q 0    # # # # .        query 0 stands at position 3   0, 4
    q 1    # # # # #        query 1 at position 4          0, 5

Both computations are custom ops: they read values (are documents contiguous? where do tiles end?) without breaking a
compiled graph, and they run once per forward, not once per layer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headway.attention.masks.atoms import Band, Chunk, CuSegments, Dense, KeyRange, Prefix, Segments, document_ids
from headway.attention.masks.expr import Mask
from headway.attention.masks.normal import Conjunction, kind_of, normalise

FAR = 2**31  # beyond every position; two of them fit into an int64 key


def row_bounds(terms: tuple[Conjunction, ...], bound) -> tuple[Tensor, Tensor] | None:
    """`(lo, hi)`, int64, each (B or 1, Lq), if the whole mask is one interval per row; None if it is not."""
    if bound.kind in ("dense", "predicate"):
        return None
    return hull_bounds(terms, bound)


def ordered_kind(mask: Mask, kv_positions: bool) -> tuple[str, bool]:
    """`kind_of` the mask given whether keys have positions of their own, and whether it is one bool tensor as it is."""
    kind, terms = kind_of(mask), normalise(mask)
    if kind not in ("dense", "predicate") and kv_positions and not all(_by_slots(t) for t in terms):
        kind = "dense"  # key positions in any order: no interval of slots
    return kind, len(terms) == 1 and len(terms[0].literals) == 1 and isinstance(terms[0].literals[0], Dense)


def hull_bounds(terms: tuple[Conjunction, ...], bound) -> tuple[Tensor, Tensor]:
    """The smallest interval per row that holds every key some conjunction might keep, as far as structure tells."""
    lo, hi = _interval(terms[0], bound)
    for term in terms[1:]:
        other_lo, other_hi = _interval(term, bound)
        # an empty interval adds nothing to a union
        empty, other_empty = hi <= lo, other_hi <= other_lo
        lo, hi = (
            torch.where(empty, other_lo, torch.where(other_empty, lo, torch.minimum(lo, other_lo))),
            torch.where(empty, other_hi, torch.where(other_empty, hi, torch.maximum(hi, other_hi))),
        )
    lo, hi = torch.broadcast_tensors(lo, hi)
    return lo, torch.maximum(lo, hi)


def _by_slots(term: Conjunction) -> bool:
    """Whether explicit key positions ascend with slots (inside documents they do), or do not matter."""
    return len(term.positional) == 0 or any(isinstance(m, CuSegments) for m in term.slotted)


def _interval(term: Conjunction, bound) -> tuple[Tensor, Tensor]:
    q_index = torch.arange(bound.q_len, device=bound.device)[None]
    lo = torch.zeros_like(q_index)
    hi = torch.full_like(q_index, bound.kv_len)
    segments: CuSegments | None = None
    for m in term.slotted:
        if isinstance(m, KeyRange):
            if m.kv is not None:
                hi = torch.minimum(hi, m.kv[:, None].to(hi))
            if m.q is not None:
                hi = torch.where(q_index < m.q[:, None], hi, 0)
            continue
        if isinstance(m, CuSegments):
            segments = m
            run_lo, run_hi = cu_bounds(m.cu_q, m.cu_kv, bound.q_len)
        elif isinstance(m, Segments):
            run_lo, run_hi = torch.ops.headway.segment_bounds(m.q_ids, m.kv_ids)
        lo, hi = torch.maximum(lo, run_lo), torch.minimum(hi, run_hi)
    if term.positional:
        first, last = _position_interval(term.positional, bound)
        if bound.kv_positions is None:
            lo, hi = torch.maximum(lo, first), torch.minimum(hi, last + 1)
        elif segments is not None:
            run_lo, run_hi = _slots_of_positions(segments, first, last, bound)
            lo, hi = torch.maximum(lo, run_lo), torch.minimum(hi, run_hi)
    lo = lo.clamp(0, bound.kv_len)
    return lo, torch.maximum(lo, hi.clamp(0, bound.kv_len))


def _position_interval(literals, bound) -> tuple[Tensor, Tensor]:
    """First and last key position allowed for each query, (B or 1, Lq) each."""
    q = bound.q_pos
    first, last = torch.full_like(q, -FAR), torch.full_like(q, FAR - 1)
    for m in literals:
        if isinstance(m, Band):
            if m.left is not None:
                first = torch.maximum(first, q - m.left)
            if m.right is not None:
                last = torch.minimum(last, q + m.right)
        elif isinstance(m, Chunk):
            start = q.div(m.size, rounding_mode="floor") * m.size
            first, last = torch.maximum(first, start), torch.minimum(last, start + m.size - 1)
        elif isinstance(m, Prefix):
            last = torch.minimum(last, m.lengths[:, None].to(q) - 1)
    return first, last


def cu_bounds(cu_q: Tensor, cu_kv: Tensor, q_len: int) -> tuple[Tensor, Tensor]:
    """Slots of each query's own document; an empty interval for a query in none."""
    doc = document_ids(cu_q, q_len)
    inside = doc >= 0
    doc = doc.clamp(min=0)
    lo, hi = cu_kv[:-1].long()[doc], cu_kv[1:].long()[doc]
    return torch.where(inside, lo, 0), torch.where(inside, hi, 0)


def _slots_of_positions(segments: CuSegments, first: Tensor, last: Tensor, bound) -> tuple[Tensor, Tensor]:
    """Slots whose (document, position) lies in the interval; positions ascend inside each document."""
    q_doc = document_ids(segments.cu_q, bound.q_len)
    k_doc = document_ids(segments.cu_kv, bound.kv_len)
    k_doc = torch.where(k_doc >= 0, k_doc, segments.cu_kv.shape[0])  # those in no document sort last
    stride = 2 * FAR
    keys = torch.ops.headway.ascending(k_doc * stride + bound.k_pos + FAR, segments.cu_kv)
    base = q_doc.clamp(min=0) * stride + FAR
    lo = torch.searchsorted(keys, (base + first.clamp(-FAR, FAR - 1)).contiguous())
    hi = torch.searchsorted(keys, (base + last.clamp(-FAR, FAR - 1)).contiguous(), right=True)
    return lo, hi


@torch.library.custom_op("headway::segment_bounds", mutates_args=())
def _segment_bounds(q_ids: Tensor, kv_ids: Tensor) -> tuple[Tensor, Tensor]:
    """For each query the run of key slots with its document id, (B or 1, Lq) each. Ids below 0 are in no document."""
    batch = max(q_ids.shape[0], kv_ids.shape[0])
    q_ids = q_ids.long().expand(batch, -1).contiguous()
    kv_ids = kv_ids.long().expand(batch, -1)
    ids, order = torch.sort(kv_ids, dim=-1, stable=True)
    left = torch.searchsorted(ids.contiguous(), q_ids)
    right = torch.searchsorted(ids.contiguous(), q_ids, right=True)
    if ids.shape[-1] == 0:
        return torch.zeros_like(q_ids), torch.zeros_like(q_ids)
    found = (right > left) & (q_ids >= 0)
    lo = order.gather(-1, left.clamp(max=ids.shape[-1] - 1))
    hi = order.gather(-1, (right - 1).clamp(min=0)) + 1
    if bool((found & (hi - lo != right - left)).any()):
        raise ValueError(
            "masks.documents(ids): a document id stands in two separate runs of slots; documents are contiguous. For "
            "interleaved ids use masks.predicate or masks.dense(q_ids[:, None, :, None] == kv_ids[:, None, None, :])"
        )
    return torch.where(found, lo, 0), torch.where(found, hi, 0)


@_segment_bounds.register_fake
def _(q_ids, kv_ids):
    batch = kv_ids.shape[0] if q_ids.shape[0] == 1 else q_ids.shape[0]
    return tuple(q_ids.new_empty(batch, q_ids.shape[1], dtype=torch.int64) for _ in range(2))  # two tensors, not one twice


@torch.library.custom_op("headway::ascending", mutates_args=())
def _ascending(keys: Tensor, cu: Tensor) -> Tensor:
    """`keys` (a copy), once it is known that they ascend up to slot `cu[-1]`; beyond it nothing is promised."""
    total = int(cu[-1])
    if bool((keys[..., 1:total] <= keys[..., : max(total - 1, 0)]).any()):
        raise ValueError(
            "positions must ascend inside each document; for any other order pass documents as ids, masks.documents(ids)"
        )
    return keys.clone()


@_ascending.register_fake
def _(keys, cu):
    return torch.empty_like(keys)


def check_total(cu: Tensor, length: int, what: str) -> None:
    """Raises ValueError if `cu` is no list of cumulative lengths, or its documents hold more slots than the call has.

    Looked at where that is free: on the CPU, outside compiled code.
    """
    if torch.compiler.is_compiling() or cu.device.type != "cpu" or isinstance(cu, torch._subclasses.FakeTensor):
        return
    ends = cu.tolist()
    if ends[0] != 0 or any(b < a for a, b in zip(ends, ends[1:])):
        raise ValueError(
            f"cu_seqlens must start at 0 and never descend, {ends[:8]}{'...' if len(ends) > 8 else ''} was given for {what}; "
            "from lengths it is torch.nn.functional.pad(lengths.cumsum(0), (1, 0))"
        )
    if ends[-1] > length:
        raise ValueError(f"this mask was made for another length: its documents hold {ends[-1]} {what}, the call has {length}")


def tiles_of(lo: Tensor, hi: Tensor, rows: int) -> Tensor:
    """Cuts each batch row's queries into tiles: (B or 1, Lq + 1, 6) int64 rows, the last of them with q0 = Lq.

    A row is (q0, k0, k1, clean0, clean1, empty): queries from q0 to the next row's q0, at most `rows` of them; keys
    `[k0, k1)`, the hull of their bounds; `[clean0, clean1)`, the keys that all of them see; whether one sees nothing. A
    tile ends early where going on would waste more than it computes: at the edges of long documents, not of short ones.
    """
    return torch.ops.headway.tile_plan(lo, hi, rows)


@torch.library.custom_op("headway::tile_plan", mutates_args=())
def _tile_plan(lo: Tensor, hi: Tensor, rows: int) -> Tensor:
    batch, q_len = lo.shape
    plan = torch.full((batch, q_len + 1, 6), q_len, dtype=torch.int64)
    for b in range(batch if q_len else 0):
        tiles = _cut(lo[b].cpu().numpy(), hi[b].cpu().numpy(), rows)
        plan[b, : len(tiles)] = torch.from_numpy(tiles)
    return plan


@_tile_plan.register_fake
def _(lo, hi, rows):
    return torch.empty(lo.shape[0], lo.shape[1] + 1, 6, dtype=torch.int64)


def _cut(lo: np.ndarray, hi: np.ndarray, rows: int) -> np.ndarray:
    """Tiles (n, 6) of one batch row."""
    some = hi > lo
    first = np.where(some, lo, np.iinfo(np.int64).max)
    last = np.where(some, hi, 0)
    reach = np.maximum.accumulate(last)
    begins = np.flatnonzero(some[1:] & (first[1:] >= reach[:-1])) + 1  # a new document begins
    edges = [0, *begins.tolist(), len(lo)]
    used = np.concatenate([[0], np.cumsum(np.where(some, hi - lo, 0))])
    starts, start = [], 0
    for left, right in zip(edges[:-1], edges[1:]):
        if left > start:
            area = (right - start) * (reach[right - 1] - first[start:right].min())
            if right - start > rows or (area > SLACK and area > 1.5 * (used[right] - used[start])):
                starts.append(start)
                start = left
        while right - start > rows:
            starts.append(start)
            start += rows
    starts.append(start)
    q0 = np.array(starts)
    k0, k1 = np.minimum.reduceat(first, q0), np.maximum.reduceat(last, q0)
    k0 = np.minimum(k0, k1)  # a tile of empty rows
    empty = np.logical_or.reduceat(~some, q0)
    clean0 = np.where(empty, k1, np.maximum.reduceat(lo, q0))
    clean1 = np.where(empty, k0, np.minimum.reduceat(hi, q0))
    return np.stack([q0, k0, k1, clean0, clean1, empty], axis=1).astype(np.int64)


SLACK = 64 * 256  # entries per head that cost no more than starting another tile
