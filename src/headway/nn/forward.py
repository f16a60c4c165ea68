"""What the layers of one forward pass share: where tokens stand, the masks of each layer kind, the cache.

Layers see packed tokens, (1, T, ...). `Forward.attend` lays q, k and v out as the attention backend likes it best:
rows of equal length as a batch, documents end to end for backends that skip blocks, right-padded rows for the others
and for reading a cache. The numbers are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.attention import attention, attention_full, get_backend, masks
from headway.attention.choice import resolve
from headway.cache import DynamicCache, StaticCache
from headway.errors import InputError
from headway.packing import PackIndex


class Forward:
    """State of one forward pass.

    index: where packed tokens stand. bands: the mask of each layer kind within a sequence, None = full attention.
    attentions: a list that collects the weights of each layer, (B, Hq, Lq, Lk), if they were asked for.
    """

    def __init__(
        self,
        index: PackIndex,
        bands: dict[str, masks.Mask | None],
        cache: DynamicCache | None = None,
        attentions: list | None = None,
    ):
        self.index, self.bands, self.cache, self.attentions = index, bands, cache, attentions
        if cache is not None and torch.compiler.is_compiling() and not index.uniform:
            raise InputError("a padded batch cannot fill a cache inside torch.compile; run the prompt outside, or pack it")
        # sequences the caller packed: one row for the model, many for attention and cache
        self.documents = index.cu_seqlens.shape[0] - 1
        self.rows_equal = index.uniform and self.documents == index.batch
        self.step = None if cache is None else cache.begin(index)
        self._masks: dict[tuple[str, str], masks.BoundMask | None] = {}

    def rope_positions(self, position_ids: Tensor | None) -> Tensor:
        """(T,) positions for the rotary embedding: the caller's, or those of the layout, moved on by what is cached."""
        if position_ids is not None:
            return position_ids
        if self.step is None or self.step.fresh:
            return self.index.positions
        return self.step.slots

    def reach(self) -> Tensor:
        """(T,) the length of each token's sequence, with what is cached: what length-dependent rope scaling goes by."""
        if self.step is not None:
            return self.step.after[self.step.rows.clamp(max=self.documents - 1)]
        if self.rows_equal:
            return self.index.lengths.new_full((1,), self.index.length)
        lengths, cu = self.index.lengths, self.index.cu_seqlens
        token = torch.arange(self.index.positions.shape[0], device=cu.device)
        return lengths[torch.searchsorted(cu[1:].contiguous(), token, right=True).clamp(max=self.documents - 1)]

    def attend(self, layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, kind: str, **call) -> Tensor:
        """q (1, T, Hq, D), k and v (1, T, Hkv, D) -> (1, T, Hq * Dv). `call` as in `attention`."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        number = getattr(layer, "layer_idx", 0)
        if self.step is not None:
            held = self.cache.update(number, k, v, self.step)  # type: ignore[union-attr]
            if not self.step.fresh:
                k, v = held
                at = self.cache.key_positions(number)  # type: ignore[union-attr]
                return self._finish(self._by_rows(layer, self._rows(q), k, v, "cached", kind, call, at))
        if self.rows_equal:
            q, k, v = (self._batched(t) for t in (q, k, v))
            out = self._call(layer, q, k, v, self._mask("batched", kind, q), call)
            return out.transpose(1, 2).reshape(1, -1, out.shape[1] * out.shape[3])
        if self.attentions is not None or not skips_blocks(layer):
            return self._finish(self._by_rows(layer, self._rows(q), self._rows(k), self._rows(v), "rows", kind, call))
        out = self._call(layer, q, k, v, self._mask("packed", kind, q), call)
        return out.transpose(1, 2).reshape(1, -1, out.shape[1] * out.shape[3])

    def _by_rows(self, layer, q, k, v, layout: str, kind: str, call, positions: Tensor | None = None) -> Tensor:
        return self._call(layer, q, k, v, self._mask(layout, kind, q, k.shape[2], positions), call)

    def _call(self, layer, q, k, v, mask, call) -> Tensor:
        choice = getattr(layer, "attention_backend", None)
        if self.attentions is None:
            return attention(q, k, v, mask=mask, layer_backend=choice, **call)
        result = attention_full(q, k, v, mask=mask, layer_backend=choice, need=("weights",), **call)
        self.attentions.append(result.weights)
        return result.output

    def _mask(
        self, layout: str, kind: str, q: Tensor, kv_len: int | None = None, key_positions: Tensor | None = None
    ) -> masks.BoundMask | None:
        key = (layout, kind)
        if key not in self._masks:
            self._masks[key] = self._make(layout, self.bands[kind], q, kv_len, key_positions)
        return self._masks[key]

    def _make(self, layout: str, band, q: Tensor, kv_len: int | None, key_positions: Tensor | None):
        index, length = self.index, q.shape[2]
        positions = None if index.uniform else index.positions
        if layout == "batched":
            return None if band is None else band.bind(length, length, batch=index.batch, device=q.device)
        if layout == "packed":
            documents = masks.documents.from_cu_seqlens(index.cu_seqlens)
            if band is None:
                return documents.bind(length, length, device=q.device)
            mask = documents & band
            return mask.bind(length, length, q_positions=positions, kv_positions=positions, device=q.device)
        if layout == "rows":
            lengths = index.lengths
            mask = masks.lengths(kv=lengths, q=lengths)
            if positions is not None:
                positions = self._rows(positions.view(1, 1, -1, 1))[:, 0, :, 0]
            if band is not None:
                mask = mask & band
            return mask.bind(length, length, batch=q.shape[0], q_positions=positions, kv_positions=positions, device=q.device)
        step, cache = self.step, self.cache
        assert step is not None and cache is not None and kv_len is not None
        if q.shape[0] == 1 and length == 1 and not isinstance(cache, StaticCache) and _sees_all(band):
            return None  # one new token of one sequence, and no slot that is not filled
        at = step.before[:, None] + torch.arange(length, device=q.device)
        if key_positions is not None:  # a ring
            return band.bind(length, kv_len, batch=q.shape[0], q_positions=at, kv_positions=key_positions, device=q.device)
        mask = masks.lengths(kv=step.after) if band is None else masks.lengths(kv=step.after) & band
        return mask.bind(length, kv_len, batch=q.shape[0], q_positions=at, device=q.device)

    def _batched(self, x: Tensor) -> Tensor:
        """(1, h, B * L, D) -> (B, h, L, D), a view."""
        return x.squeeze(0).unflatten(1, (self.index.batch, self.index.length)).transpose(0, 1)

    def _places(self, width: int) -> Tensor:
        """Flat place of each packed token in right-padded rows of `width`."""
        cu = self.index.cu_seqlens
        token = torch.arange(self.index.positions.shape[0], device=cu.device)
        row = torch.searchsorted(cu[1:].contiguous(), token, right=True).clamp(max=self.documents - 1)
        return row * width + token - cu[row]

    @property
    def _width(self) -> int:
        return self.index.max_len

    def _rows(self, x: Tensor) -> Tensor:
        """Packed (1, h, T, D) -> right-padded rows (B, h, W, D)."""
        if self.rows_equal:
            return self._batched(x)
        width = self._width
        # a tail that is in no row (only while compiling) lands in one more place, which is cut off
        places = self._places(width)
        rows = x.new_zeros(self.documents * width + 1, x.shape[1], x.shape[3])
        if torch.compiler.is_compiling():
            inside = torch.arange(x.shape[2], device=x.device) < self.index.cu_seqlens[-1]
            places = torch.where(inside, places, self.documents * width)
        rows = rows.index_copy(0, places, x[0].transpose(0, 1)) if not torch.compiler.is_compiling() else rows.index_put(
            (places,), x[0].transpose(0, 1))  # fmt: skip
        return rows[:-1].view(self.documents, width, x.shape[1], x.shape[3]).transpose(1, 2)

    def _finish(self, out: Tensor) -> Tensor:
        """Rows (B, h, W, D) -> packed (1, T, h * D)."""
        batch, heads, width, dim = out.shape
        flat = out.transpose(1, 2).reshape(batch * width, heads * dim)
        if self.rows_equal:
            return flat.unsqueeze(0)
        return flat.index_select(0, self._places(width).clamp(max=batch * width - 1)).unsqueeze(0)


def _sees_all(band) -> bool:
    """Whether the last position sees every earlier one."""
    return band is None or (isinstance(band, masks.Band) and band.left is None)


def skips_blocks(layer: nn.Module) -> bool:
    """Whether the layer's backend skips other documents, so that they can lie end to end at no cost."""
    name = resolve(getattr(layer, "attention_backend", None))
    return name == "auto" or get_backend(name).skips_blocks
