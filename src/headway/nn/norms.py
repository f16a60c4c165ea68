"""Normalisation layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, statistics in fp32 (Zhang & Sennrich 2019). x (..., hidden)."""

    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32 == self.weight.dtype:
            return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        y = nn.functional.rms_norm(x.float(), self.weight.shape, None, self.eps)
        return self.weight * y.to(x.dtype)


class UnitOffsetRMSNorm(nn.Module):
    """RMSNorm whose stored weight is an offset from one: the scale is 1 + weight, applied in fp32 (Gemma)."""

    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 + self.weight.float()
        return nn.functional.rms_norm(x.float(), scale.shape, scale, self.eps).to(x.dtype)
