"""The entry of every model: whatever the caller holds becomes packed tokens, and outputs go back to the caller's layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.attention import masks
from headway.cache import DynamicCache
from headway.errors import InputError
from headway.nn.forward import Forward
from headway.nn.losses import IGNORED, span_loss
from headway.packing import Packed, PackIndex, index_of, pack


@dataclass
class Entry:
    """A forward pass at the model's door. ids (T,) or embeds (1, T, hidden); position_ids (T,) if the caller gave any."""

    index: PackIndex
    ids: Tensor | None
    embeds: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    forward: Forward
    packed: bool
    labels: Tensor | None = None

    def out(self, x: Tensor) -> Tensor:
        """(1, T, ...) in the caller's layout: (B, L, ...), or as it is for packed input."""
        return x if self.packed else self.index.scatter(x)

    def spans(self, logits: Tensor, start_at: Tensor | None, end_at: Tensor | None):
        """`(start logits (B, L), end logits (B, L), loss or None)` from packed (1, T, 2); padding can never be chosen."""
        real = self.out(torch.ones_like(logits[..., :1]))[..., 0] != 0
        starts, ends = self.out(logits).masked_fill(~real.unsqueeze(-1), torch.finfo(logits.dtype).min).unbind(-1)
        if start_at is None or end_at is None:
            return starts, ends, None
        return starts, ends, span_loss(starts, ends, start_at, end_at)

    def hidden_states(self, collected: list[Tensor] | None) -> tuple[Tensor, ...] | None:
        return None if collected is None else tuple(self.out(x) for x in collected)

    def attentions(self) -> tuple[Tensor, ...] | None:
        """Attention weights (B, Hq, L, L) of each layer in the caller's layout."""
        found = self.forward.attentions
        return None if found is None else tuple(self._unrow(w) for w in found)

    def _unrow(self, w: Tensor) -> Tensor:
        index = self.index
        if index.uniform or self.forward.step is not None and not self.forward.step.fresh:
            return w
        width = w.shape[-1]
        columns = torch.as_tensor(index.indices % index.length)  # type: ignore[operator]
        at = w.new_full((index.batch * width,), index.length, dtype=torch.int64)
        at = at.index_copy(0, self.forward._places(width), columns).view(index.batch, width)
        out = w.new_zeros(*w.shape[:2], index.length + 1, index.length + 1)
        batch = torch.arange(index.batch, device=w.device)[:, None, None]
        out[batch, :, at[:, :, None], at[:, None, :]] = w.permute(0, 2, 3, 1)
        return out[..., :-1, :-1]

    def pack_labels(self, labels: Tensor | None) -> Tensor | None:
        """Labels per token, (B, L) or packed, as (T,); what is in no sequence is ignored."""
        if labels is None:
            labels = self.labels
        elif not self.packed:
            labels = self.index.gather(labels).squeeze(0)
        if labels is None:
            return None
        labels = labels.reshape(-1)
        if not self.packed and not torch.compiler.is_compiling():
            return labels
        inside = torch.arange(labels.shape[0], device=labels.device) < self.index.cu_seqlens[-1].to(labels.device)
        return torch.where(inside, labels, IGNORED)


def enter(
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    bands: dict[str, masks.Mask | None],
    *,
    vocab_size: int,
    token_type_ids: Tensor | None = None,
    packed: Packed | None = None,
    cache: DynamicCache | None = None,
    output_attentions: bool = False,
) -> Entry:
    """Checks and packs a model's input. Raises InputError for what does not fit together."""
    attentions: list | None = [] if output_attentions else None
    if packed is not None:
        if input_ids is not None or inputs_embeds is not None or attention_mask is not None:
            raise InputError("give either packed= or input_ids / inputs_embeds with attention_mask, not both")
        check_ids(packed.input_ids, vocab_size)
        index = index_of(packed)
        forward = Forward(index, bands, cache, attentions)
        positions = packed.positions if cache is None or forward.step.fresh else None  # type: ignore[union-attr]
        return Entry(index, packed.input_ids, None, packed.token_type_ids, positions, forward, True, packed.labels)
    if (input_ids is None) == (inputs_embeds is None):
        raise InputError("give exactly one of input_ids and inputs_embeds")
    given = input_ids if input_ids is not None else inputs_embeds
    assert given is not None
    if given.dim() != (2 if input_ids is not None else 3):
        want = "(B, L)" if input_ids is not None else "(B, L, hidden)"
        raise InputError(
            f"{'input_ids' if input_ids is not None else 'inputs_embeds'} must be {want}, got {tuple(given.shape)}"
        )
    batch, length = given.shape[0], given.shape[1]
    if input_ids is not None:
        check_ids(input_ids, vocab_size)
    if attention_mask is not None and attention_mask.dim() == 2 and cache is not None and cache.lengths is not None:
        if attention_mask.shape[1] > length:  # one that covers the cached tokens too
            attention_mask = attention_mask[:, -length:]
    index = pack(batch, length, attention_mask, given.device)
    forward = Forward(index, bands, cache, attentions)
    return Entry(
        index,
        None if input_ids is None else index.gather(input_ids).squeeze(0),
        None if inputs_embeds is None else index.gather(inputs_embeds),
        None if token_type_ids is None else index.gather(token_type_ids).squeeze(0),
        _positions(position_ids, batch, length, index),
        forward,
        False,
    )


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Raises InputError for ids that are no integers of the vocabulary."""
    if ids.is_floating_point():
        raise InputError(f"input_ids must be integers, {ids.dtype} was given")
    check_range(ids, vocab_size, "token ids", "does the tokenizer fit the model?")


def check_range(values: Tensor, limit: int, name: str, hint: str) -> None:
    """Raises InputError for values outside [0, limit); not while compiling, where values cannot be read."""
    if torch.compiler.is_compiling() or values.numel() == 0 or values.device.type == "meta":
        return
    low, high = (int(x) for x in torch.aminmax(values))
    if low < 0 or high >= limit:
        raise InputError(f"{name} must be in [0, {limit}), found {low if low < 0 else high}; {hint}")


def check_positions(positions: Tensor, table: torch.nn.Embedding) -> None:
    """Raises InputError where a model with learned positions has none to give."""
    check_range(positions, table.num_embeddings, "positions", "this model has no more learned positions; shorten the input")


def _positions(position_ids: Tensor | None, batch: int, length: int, index: PackIndex) -> Tensor | None:
    if position_ids is None:
        return None
    if position_ids.dim() == 1:
        position_ids = position_ids[None]
    if position_ids.dim() != 2 or position_ids.shape[1] != length or position_ids.shape[0] not in (1, batch):
        raise InputError(
            f"position_ids of shape {tuple(position_ids.shape)} does not fit; accepted are ({length},), (1, {length}) and "
            f"({batch}, {length})"
        )
    return index.gather(position_ids.expand(batch, length)).squeeze(0)
