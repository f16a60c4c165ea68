"""What models return: dataclasses with Hugging Face's field names, pytrees, None where something was not asked for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, dataclass_transform

from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass_transform(kw_only_default=True)
def _output(cls):
    cls = dataclass(kw_only=True)(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    pytree.register_pytree_node(
        cls,
        lambda o: ([getattr(o, n) for n in names], None),
        lambda children, _: cls(**dict(zip(names, children))),
        serialized_type_name=f"headway.{cls.__name__}",
    )
    return cls


@_output
class ModelOutput:
    """last_hidden_state (B, L, hidden), zeros on padding; packed input gives (1, T, hidden)."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    past_key_values: Any = None


@_output
class LMOutput:
    """logits (B, L, vocab), zeros on padding; with labels their loss."""

    logits: Tensor
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    past_key_values: Any = None


@_output
class HeadOutput:
    """logits (B, labels) of a sequence head, (B, L, labels) of a token head, (B, choices) of multiple choice."""

    logits: Tensor
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@_output
class SpanOutput:
    """start_logits and end_logits (B, L)."""

    start_logits: Tensor
    end_logits: Tensor
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
