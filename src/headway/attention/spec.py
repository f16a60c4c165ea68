"""What a call needs, as a static, hashable description. Planning reads this and never a tensor's values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionSpec(NamedTuple):
    """Everything that decides which backend can serve a call. Lengths are left out: a plan holds for all of them."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    capability: tuple[int, int] | None = None  # of a CUDA device
    head_dim: int = 64
    value_dim: int = 64
    group: int = 1  # query heads per key/value head
    decode: bool = False  # one query per batch row
    square: bool = True  # as many queries as keys
    needs_grad: bool = False
    compiling: bool = False  # inside torch.compile or export
    mask: str = "none"  # none causal window rows documents dense predicate; see masks.normal.kind_of
    tensor_mask: bool = False  # the mask is a bool tensor already, given by the caller
    positions: bool = False  # explicit query or key positions
    softcap: bool = False
    bias: bool = False
    bias_grad: bool = False
    sinks: bool = False
    dropout: bool = False
    scores: str = "fp32"
    need: tuple[str, ...] = ()  # of "lse", "weights"


class Call(NamedTuple):
    """The values of a call that a backend's `run` needs besides q, k, v and the mask."""

    scale: float
    softcap: float | None = None
    bias: Tensor | None = None
    sink_logits: Tensor | None = None
    dropout_p: float = 0.0
