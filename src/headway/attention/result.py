"""What an attention call gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionResult(NamedTuple):
    """output (B, Hq, Lq, Dv) in the dtype of the query; on request lse (B, Hq, Lq), float32 or float64, natural log, of exactly
    what was normalised (the sink included), and weights (B, Hq, Lq, Lk) after dropout, in that precision too."""

    output: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None
