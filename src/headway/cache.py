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
        self.filled = False

    def fresh(self) -> DynamicCache:
        """An empty cache of the same kind."""
        return type(self)()

    @property
    def batch(self) -> int | None:
        return None if self.lengths is None else self.lengths.shape[0]

    def get_seq_length(self) -> int:
        """The longest row's length."""
        return 0 if self.lengths is None else int(self.lengths.max())

    def begin(self, index: PackIndex) -> Step:
        """Reserves room for the tokens of `index`; raises InputError if the batch is another than before."""
        added = index.lengths
        before = torch.zeros_like(added) if self.lengths is None else self.lengths
        if added.shape != before.shape:
            raise InputError(
                f"this cache holds {before.shape[0]} rows, {added.shape[0]} were given; a cache belongs to one batch"
            )
        _refuse_holes(index)
        token = torch.arange(index.positions.shape[0], device=added.device)
        rows = torch.searchsorted(index.cu_seqlens[1:].contiguous(), token, right=True)
        if index.uniform and index.max_len == 1:
            slots = before
        else:
            slots = before[rows] + token - index.cu_seqlens[rows]
        after, fresh = before + added, not self.filled
        self.reserve(after, index.max_len)
        self.lengths, self.filled = after, True
        return Step(rows, slots, before, after, self.size(), fresh, index.max_len)

    def reserve(self, after: Tensor, added: int) -> None:
        """Counts tokens that are about to be added: at most `added` a row, which then holds `after` (B,)."""
        self.longest += added

    def size(self) -> int:
        """Slots that attention reads."""
        return self.longest

    def capacity(self) -> int:
        """Slots to take memory for."""
        return max(64, self.longest + self.longest // 2)

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
        grown = new.new_zeros(batch, heads, self.capacity(), dim)
        if held is not None:
            grown[:, :, : held.shape[2]] = held
        return grown

    def key_positions(self, layer: int) -> Tensor | None:
        """(B, size) positions of what `update` returns for a layer, None where a slot's number is its position."""
        return None

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
            self.filled = self.longest > 0


class StaticCache(DynamicCache):
    """A fixed number of slots, allocated once: attention always reads all of them, so shapes never change."""

    def __init__(self, max_len: int):
        super().__init__()
        self.max_len = max_len

    def fresh(self) -> StaticCache:
        return StaticCache(self.max_len)

    def reserve(self, after: Tensor, added: int) -> None:
        """Raises InputError where there is no room; not inside torch.compile, where values cannot be read."""
        if torch.compiler.is_compiling():  # and a count that changes with every step would be a graph for every step
            return
        needed = int(after.max()) if after.numel() else 0
        if needed > self.max_len:
            raise InputError(f"the static cache holds {self.max_len} tokens a row, {needed} are needed; make a longer one")
        self.longest = needed

    def size(self) -> int:
        return self.max_len

    def capacity(self) -> int:
        return self.max_len


class SlidingCache(DynamicCache):
    """Layers with a causal window of W keep only the last W tokens, in a ring: position p lies in slot p % W.

        W = 4, position 5 just written      slot 0 1 2 3
                                        position 4 5 2 3

    windows: W of each such layer; the other layers grow as in `DynamicCache`. Attention reads the ring with true positions;
    several new tokens stand behind the ring as it was, since the last of them overwrites what the first one sees. What was
    never written stands before every window.
    """

    NEVER = -(2**30)

    def __init__(self, windows: dict[int, int]):
        super().__init__()
        self.windows = windows
        self.ring: dict[int, Tensor] = {}  # W -> (B, W) positions held
        self.read: dict[int, Tensor] = {}  # W -> (B, W + new) positions of ring and new tokens

    def fresh(self) -> SlidingCache:
        return SlidingCache(self.windows)

    def begin(self, index: PackIndex) -> Step:
        step = super().begin(index)
        batch, device = step.after.shape[0], step.after.device
        new = step.before[:, None] + torch.arange(step.q_len, device=device)
        new = torch.where(new < step.after[:, None], new, self.NEVER)
        for window in set(self.windows.values()):
            held = self.ring.get(window)
            if held is None:
                held = torch.full((batch, window), self.NEVER, device=device)
            kept = step.slots >= (step.after - window)[step.rows]
            ring = held.clone()
            ring[step.rows[kept], step.slots[kept] % window] = step.slots[kept]
            self.ring[window] = ring
            self.read[window] = ring if step.q_len == 1 else torch.cat([held, new], 1)
        return step

    def update(self, layer: int, k: Tensor, v: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        window = self.windows.get(layer)
        if window is None:
            return super().update(layer, k, v, step)
        while len(self.keys) <= layer:
            self.keys.append(None)
            self.values.append(None)
        keys, self.keys[layer] = self._turn(self.keys[layer], k, step, window)
        values, self.values[layer] = self._turn(self.values[layer], v, step, window)
        return keys, values

    def _turn(self, held: Tensor | None, new: Tensor, step: Step, window: int) -> tuple[Tensor, Tensor]:
        """(what attention reads, the ring with the new tokens in it)."""
        batch, heads, dim = step.after.shape[0], new.shape[1], new.shape[3]
        if held is None:
            held = new.new_zeros(batch, heads, window, dim)
        tokens = new[0].transpose(0, 1).to(held.dtype)
        if step.q_len == 1:
            held[step.rows, :, step.slots % window] = tokens
            return held, held
        rows = held.new_zeros(batch, step.q_len, heads, dim)
        rows[step.rows, step.slots - step.before[step.rows]] = tokens
        both = torch.cat([held, rows.transpose(1, 2)], 2)
        kept = step.slots >= (step.after - window)[step.rows]
        held = held.clone()
        held[step.rows[kept], :, step.slots[kept] % window] = tokens[kept]
        return both, held

    def key_positions(self, layer: int) -> Tensor | None:
        window = self.windows.get(layer)
        return None if window is None else self.read[window]

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.ring = {w: t.index_select(0, rows) for w, t in self.ring.items()}

    def crop(self, length: int) -> None:
        raise InputError("a sliding cache has forgotten what lies before its windows; it cannot be cropped")


def _refuse_holes(index: PackIndex) -> None:
    """A slot's number is its token's position, which is not so for a mask with zeros between ones."""
    if index.indices is None or torch.compiler.is_compiling():
        return
    filled = index.lengths > 0
    if bool((index.positions[index.last()[filled]] + 1 != index.lengths[filled]).any()):
        raise InputError("an attention_mask with zeros between ones cannot fill a cache; drop the masked tokens first")
