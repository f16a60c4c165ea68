"""Several sequences in one row, told apart by positions that start again.

input_ids     a b c d e f .        each document sees itself only, wherever transformers would let it see more:
position_ids  0 1 2 0 1 2 0        with an all-ones mask, with an (empty) cache in use, in encoders
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.attention.masks import Mask, documents
from headway.packing import PackIndex


class Within(threading.local):
    """What the forward in progress in this thread keeps to; Dynamo reads a thread's attributes, not a ContextVar.

    Either document ids (B or 1, L), or one row of `index`ed tokens with `positions` (T,) where slots would miscount.
    """

    ids: Tensor | None = None
    index: PackIndex | None = None
    positions: Tensor | None = None


within = Within()


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """In the block, `model(..., position_ids=...)` keeps every attention layer inside documents.

    A document begins wherever a position is not the one before it plus 1. position_ids (B, L) or (1, L); calls without them
    are unchanged. Raises ValueError if the model's attention is not Headway's, if it has layers that would mix documents
    besides attention (convolutions, state spaces), or, in a call, if documents stand behind a filled cache.
    """
    _check(model)

    def begin(module, args, kwargs):
        positions = kwargs.get("position_ids")
        within.ids = None if positions is None else document_ids(positions)

    def end(*_):
        within.ids = None

    hooks = (
        model.register_forward_pre_hook(begin, with_kwargs=True),
        model.register_forward_hook(end, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def document_ids(positions: Tensor) -> Tensor:
    """(B, L) positions -> (B, L) document numbers from 0."""
    if positions.dim() == 1:
        positions = positions[None]
    if positions.dim() != 2 or positions.is_floating_point():
        raise ValueError(f"position_ids must be integers (B, L) to tell documents apart, {tuple(positions.shape)} was given")
    return torch.nn.functional.pad((positions[:, 1:] != positions[:, :-1] + 1).cumsum(-1), (1, 0))


def current_documents(q_len: Any, kv_len: Any, batch: Any) -> Mask | None:
    """The documents of the forward in progress as a mask; None if there are none."""
    if within.index is not None:
        return documents.from_cu_seqlens(within.index.cu_seqlens)
    ids = within.ids
    if ids is None:
        return None
    if ids.shape[1] == q_len and q_len == kv_len and (ids.shape[0] == 1 or ids.shape[0] == batch):
        return documents(ids)
    if not torch.compiler.is_compiling() and not bool(ids.any()):
        return None  # one document a row: nothing to keep apart
    raise ValueError(
        f"position_ids {tuple(ids.shape)} hold several documents, but the mask is for {q_len} queries on {kv_len} keys: packed "
        "documents cannot continue a filled or fixed-size cache; pass use_cache=False and call the model on whole documents"
    )


def _check(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    implementation = str(getattr(config, "_attn_implementation", None))
    if not implementation.startswith("headway"):
        raise ValueError(
            f"packed(model) needs Headway's attention, the model uses {implementation!r}; call "
            "headway.integrations.transformers.register() and model.set_attn_implementation('headway')"
        )
    mixing = sorted({t for t in getattr(config, "layer_types", None) or () if "attention" not in t or "linear" in t})
    if mixing:
        raise ValueError(f"layers of type {', '.join(mixing)} would mix packed documents; pad the batch instead")


@dataclass
class PackingCollator:
    """Packs examples into rows of at most `max_length` tokens, first fit, longest first.

    Takes examples with `input_ids` and, if any, `labels`; gives input_ids, position_ids (from 0 in each document) and labels
    (B, max_length). The first label of each document is `ignore`, so that no loss is taken across a border; labels default
    to the ids. Unused places at the end of a row hold `pad_token_id`, position 0 and label `ignore`.
    Raises ValueError for an example longer than `max_length`.
    """

    max_length: int
    pad_token_id: int = 0
    ignore: int = -100

    def __call__(self, examples: Sequence[dict]) -> dict[str, Tensor]:
        rows: list[list[dict]] = []
        room: list[int] = []
        for example in sorted(examples, key=lambda e: len(e["input_ids"]), reverse=True):
            size = len(example["input_ids"])
            if size > self.max_length:
                raise ValueError(f"an example has {size} tokens, rows hold {self.max_length}; truncate it or raise max_length")
            row = next((i for i, free in enumerate(room) if free >= size), len(rows))
            if row == len(rows):
                rows.append([])
                room.append(self.max_length)
            rows[row].append(example)
            room[row] -= size
        columns = {"input_ids": self.pad_token_id, "position_ids": 0, "labels": self.ignore}
        out = {name: torch.full((len(rows), self.max_length), fill, dtype=torch.int64) for name, fill in columns.items()}
        for i, row_examples in enumerate(rows):
            at = 0
            for example in row_examples:
                ids = torch.as_tensor(example["input_ids"])
                place = slice(at, at + len(ids))
                out["input_ids"][i, place] = ids
                out["position_ids"][i, place] = torch.arange(len(ids))
                out["labels"][i, place] = torch.as_tensor(example.get("labels", ids))
                out["labels"][i, at : at + 1] = self.ignore
                at += len(ids)
        return out
