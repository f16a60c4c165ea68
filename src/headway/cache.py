"""Key/value caches, right-padded with a true length per batch row: left padding never exists inside.

    row 0   k k k . .   length 3        A slot's number is its token's position, so masks need no more than
    row 1   k k k k .   length 4        `lengths(kv=...)`. The ring of a sliding layer keeps positions explicitly.

`begin` is called once per forward and says where the new tokens go; `update` once per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.errors import InputError
from headway.packing import PackIndex


@dataclass(frozen=True)
class Step:
    """One forward's additions: packed token t goes to slot `slots[t]` of row `rows[t]`.

    before, after (B,): lengths. size: slots that attention reads. fresh: nothing was cached. q_len: longest addition.
    """

    rows: Tensor
    slots: Tensor
    before: Tensor
    after: Tensor
    size: int
    fresh: bool
    q_len: int


class DynamicCache:
    """Grows as needed, by half at a time. `lengths` (B,) is the number of tokens of each row."""

    def __init__(self):
        self.keys: list[Tensor | None] = []
        self.values: list[Tensor | None] = []
        self.lengths: Tensor | None = None
        self.longest = 0  # a bound of lengths.max(), known without reading the device

    @property
    def batch(self) -> int | None:
        return None if self.lengths is None else self.lengths.shape[0]

    def get_seq_length(self) -> int:
        """The longest row's length."""
        return 0 if self.lengths is None else int(self.lengths.max())

    def begin(self, index: PackIndex) -> Step:
        """Reserves room for the tokens of `index`; raises InputError if the batch is another than before."""
        added = index.lengths
        if self.lengths is None:
            self.lengths = torch.zeros_like(added)
        if added.shape != self.lengths.shape:
            raise InputError(
                f"this cache holds {self.lengths.shape[0]} rows, {added.shape[0]} were given; a cache belongs to one batch"
            )
        before, fresh = self.lengths, self.longest == 0
        token = torch.arange(index.positions.shape[0], device=added.device)
        rows = torch.searchsorted(index.cu_seqlens[1:].contiguous(), token, right=True)
        if index.uniform and index.max_len == 1:
            slots = before
        else:
            slots = before[rows] + token - index.cu_seqlens[rows]
        self.lengths = before + added
        self.advance(index.max_len)
        return Step(rows, slots, before, self.lengths, self.size_of(self.longest), fresh, index.max_len)

    def advance(self, added: int) -> None:
        """Counts tokens that are about to be added."""
        self.longest += added

    def size_of(self, needed: int) -> int:
        return needed

    def capacity(self, needed: int) -> int:
        return max(64, needed + needed // 2)

    def update(self, layer: int, k: Tensor, v: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Writes k and v, packed (1, Hkv, T, D), and returns what attention reads, (B, Hkv, size, D)."""
        while len(self.keys) <= layer:
            self.keys.append(None)
            self.values.append(None)
        keys = self.keys[layer] = self._held(self.keys[layer], k, step)
        values = self.values[layer] = self._held(self.values[layer], v, step)
        keys[step.rows, :, step.slots] = k[0].transpose(0, 1).to(keys.dtype)
        values[step.rows, :, step.slots] = v[0].transpose(0, 1).to(values.dtype)
        return keys[:, :, : step.size], values[:, :, : step.size]

    def _held(self, held: Tensor | None, new: Tensor, step: Step) -> Tensor:
        if held is not None and held.shape[2] >= step.size:
            return held
        batch, heads, dim = step.after.shape[0], new.shape[1], new.shape[3]
        grown = new.new_zeros(batch, heads, self.capacity(step.size), dim)
        if held is not None:
            grown[:, :, : held.shape[2]] = held
        return grown

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was (beam search); the number of rows may change."""
        for held in (self.keys, self.values):
            for i, t in enumerate(held):
                held[i] = None if t is None else t.index_select(0, rows)
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, rows)

    def crop(self, length: int) -> None:
        """Forgets what lies beyond the first `length` tokens of each row."""
        if self.lengths is not None:
            self.lengths = self.lengths.clamp(max=length)
            self.longest = min(self.longest, length)


class StaticCache(DynamicCache):
    """A fixed number of slots, allocated once: attention always reads all of them, so shapes never change."""

    def __init__(self, max_len: int):
        super().__init__()
        self.max_len = max_len

    def advance(self, added: int) -> None:
        if torch.compiler.is_compiling():  # a number that changes with every step would be a graph for every step
            return
        if self.longest + added > self.max_len:
            needed = self.longest + added
            raise InputError(f"the static cache holds {self.max_len} tokens a row, {needed} are needed; make a longer one")
        super().advance(added)

    def size_of(self, needed: int) -> int:
        return self.max_len

    def capacity(self, needed: int) -> int:
        return self.max_len
