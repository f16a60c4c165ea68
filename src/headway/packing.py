"""Packing: a padded batch becomes one row of real tokens at a model's entry and is unpacked once at its exit.

    B = 3, L = 4, left or right padding            T = 7
    a b . .                                        a b c d e f g
    . c d e          ->                            cu_seqlens 0 2 5 7, positions 0 1 0 1 2 0 1
    f g . .

Nothing in between ever computes on padding. Positions count from a row's first real token; a mask with holes keeps its
true distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from headway.errors import InputError


@dataclass(frozen=True)
class Packed:
    """Sequences laid end to end, held by the caller so that nothing is packed again.

    input_ids (T,) int64; cu_seqlens (N + 1,) int64 from 0 to T; positions (T,), counted within each sequence;
    token_type_ids and labels (T,) or None.
    """

    input_ids: Tensor
    cu_seqlens: Tensor
    positions: Tensor
    token_type_ids: Tensor | None = None
    labels: Tensor | None = None

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]], device=None) -> Packed:
        """Packs lists of token ids; an empty list is a sequence of no tokens."""
        lengths = torch.tensor([len(s) for s in sequences], dtype=torch.int64)
        flat = [t for s in sequences for t in s]
        cu = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        positions = torch.cat([torch.arange(n) for n in lengths.tolist()] or [torch.zeros(0, dtype=torch.int64)])
        ids = torch.tensor(flat, dtype=torch.int64)
        return cls(ids.to(device), cu.to(device), positions.to(device))

    @property
    def lengths(self) -> Tensor:
        return self.cu_seqlens.diff()


pytree.register_pytree_node(
    Packed,
    lambda p: ([p.input_ids, p.cu_seqlens, p.positions, p.token_type_ids, p.labels], None),
    lambda children, _: Packed(*children),
    serialized_type_name="headway.Packed",
)


@dataclass(frozen=True)
class PackIndex:
    """Where each packed token stands in its batch of `batch` rows and `length` columns.

    indices (T,): flat place in the (B, L) layout, None if every token is real. cu_seqlens (B + 1,). positions (T,).
    max_len: the longest row, or a bound of it. Under torch.compile T is B * L, real tokens first; the rest, from
    `cu_seqlens[-1]` on, is in no row.
    """

    indices: Tensor | None
    cu_seqlens: Tensor
    positions: Tensor
    batch: int
    length: int
    max_len: int

    @property
    def uniform(self) -> bool:
        """Whether all rows are full, so that packing and unpacking are plain reshapes."""
        return self.indices is None

    @property
    def lengths(self) -> Tensor:
        return self.cu_seqlens.diff()

    def gather(self, x: Tensor) -> Tensor:
        """(B, L, ...) -> (1, T, ...). Differentiable. Raises InputError for another B or L."""
        if not torch.compiler.is_compiling() and x.shape[:2] != (self.batch, self.length):
            raise InputError(
                f"every input of a batch must begin with ({self.batch}, {self.length}), the shape of input_ids; "
                f"{tuple(x.shape)} was given"
            )
        flat = x.reshape(self.batch * self.length, *x.shape[2:])
        return (flat if self.indices is None else flat.index_select(0, self.indices)).unsqueeze(0)

    def scatter(self, y: Tensor) -> Tensor:
        """(1, T, ...) -> (B, L, ...), zero where there is no real token. Differentiable."""
        y = y.squeeze(0)
        if self.indices is None:
            return y.reshape(self.batch, self.length, *y.shape[1:])
        if torch.compiler.is_compiling():  # the tail is in no row
            real = torch.arange(y.shape[0], device=y.device) < self.cu_seqlens[-1]
            y = y * real.view(-1, *(1,) * (y.dim() - 1))
        flat = y.new_zeros(self.batch * self.length, *y.shape[1:])
        return flat.index_copy(0, self.indices, y).view(self.batch, self.length, *y.shape[1:])

    def last(self) -> Tensor:
        """(B,) packed index of each row's last real token."""
        return self.cu_seqlens[1:] - 1


def pack(batch: int, length: int, attention_mask: Tensor | None, device) -> PackIndex:
    """The index of a batch. attention_mask (B, L), nonzero = real token; None: all are."""
    if attention_mask is None:
        cu = torch.arange(batch + 1, device=device) * length
        return PackIndex(None, cu, torch.arange(length, device=device).repeat(batch), batch, length, length)
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] != length:
        raise InputError(
            f"attention_mask must have shape ({batch}, {length}), 1 = real token; {tuple(attention_mask.shape)} was given. "
            "Masks between tokens are given to headway.attention, not to a model"
        )
    with torch.no_grad():
        real = attention_mask.to(device) != 0
        lengths = real.sum(1)
        cu = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        columns = torch.arange(length, device=device).expand(batch, length)
        first = torch.where(real, columns, length).amin(1, keepdim=True) if length else columns
        positions = (columns - first).clamp(min=0).reshape(-1)
        flat = real.reshape(-1)
        if torch.compiler.is_compiling():
            indices = torch.argsort(flat.logical_not().to(torch.uint8), stable=True)
            max_len = length
        else:
            indices = flat.nonzero().squeeze(1)
            if indices.numel() == flat.numel():
                return pack(batch, length, None, device)
            max_len = int(lengths.max()) if batch else 0
        return PackIndex(indices, cu, positions[indices], batch, length, max_len)


def index_of(packed: Packed) -> PackIndex:
    """The index of sequences that the caller packed: one row of T tokens."""
    total = packed.input_ids.shape[0]
    longest = total if torch.compiler.is_compiling() else int(packed.lengths.max()) if packed.cu_seqlens.shape[0] > 1 else 0
    return PackIndex(None, packed.cu_seqlens, packed.positions, 1, total, longest)
