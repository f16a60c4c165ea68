"""Rotary position embedding (Su et al. 2021) with the scaling variants that published configurations use.

A pair of features (x1, x2) at position m is turned by the angle m * f_i:

    x1' = x1 cos - x2 sin        x2' = x2 cos + x1 sin        f_i = theta^(-2i / dim)

Angles are always computed in fp32. `half` layout pairs feature i with i + dim/2 (Llama), `interleaved` pairs 2i with
2i + 1 (GLM). Only the first `dim` features of a head are turned (partial rotary).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import InputError


def frequencies(rope: dict[str, Any], dim: int, max_positions: int) -> tuple[Tensor, float]:
    """`(f (dim/2,), factor on cos and sin)` for rope parameters in Hugging Face's terms.

    rope: rope_type (default, linear, dynamic, llama3, longrope, yarn), rope_theta and what the type needs.
    """
    kind = rope.get("rope_type", "default")
    theta = float(rope["rope_theta"])
    f = theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if kind in ("default", "dynamic"):
        return f, 1.0
    if kind == "linear":
        return f / rope["factor"], 1.0
    if kind == "llama3":
        return _llama3(f, rope), 1.0
    if kind == "yarn":
        return _yarn(f, rope, dim, theta, max_positions)
    if kind == "longrope":
        return f / torch.tensor(rope["short_factor"], dtype=torch.float32), _longrope_factor(rope, max_positions)
    raise InputError(f"unknown rope_type {kind!r}; known: default, linear, dynamic, llama3, longrope, yarn")


def _llama3(f: Tensor, rope: dict[str, Any]) -> Tensor:
    """Low frequencies are slowed by `factor`, high ones kept, those between blended (Llama 3.1)."""
    old = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    wavelength = 2 * math.pi / f
    blend = ((old / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * f / rope["factor"] + blend * f


def _yarn(f: Tensor, rope: dict[str, Any], dim: int, theta: float, max_positions: int) -> tuple[Tensor, float]:
    """Interpolation by parts (Peng et al. 2023, YaRN, sections 3.2 and 3.4)."""
    factor = rope["factor"]
    old = rope.get("original_max_position_embeddings") or max_positions

    def dimension(turns: float) -> float:
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(rope.get("beta_fast") or 32.0), dimension(rope.get("beta_slow") or 1.0)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (max(high - low, 0.001))).clamp(0.0, 1.0)

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = rope.get("attention_factor")
    if attention is None:
        one, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
        attention = grown(one) / grown(all_dims) if one and all_dims else grown(1.0)
    return ramp * f / factor + (1 - ramp) * f, float(attention)


def _longrope_factor(rope: dict[str, Any], max_positions: int) -> float:
    """sqrt(1 + ln s / ln L), s the extension over the original length L (Ding et al. 2024, LongRoPE)."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    old = rope.get("original_max_position_embeddings") or max_positions
    s = rope.get("factor") or max_positions / old
    return 1.0 if s <= 1.0 else math.sqrt(1 + math.log(s) / math.log(old))


class RotaryEmbedding(nn.Module):
    """cos and sin for the positions of a forward pass, shared by all layers.

    `dynamic` and `longrope` choose frequencies by the length of a token's own sequence, `reach` (T,) or (1,), so that no
    sequence of a batch changes another.
    """

    inv_freq: Tensor

    def __init__(self, rope: dict[str, Any], dim: int, max_positions: int):
        super().__init__()
        self.rope, self.dim, self.max_positions = rope, dim, max_positions
        self.kind = rope.get("rope_type", "default")
        self.init_buffers()

    def init_buffers(self) -> None:
        f, self.factor = frequencies(self.rope, self.dim, self.max_positions)
        self.register_buffer("inv_freq", f, persistent=False)

    def _frequencies(self, positions: Tensor, reach: Tensor | None) -> Tensor:
        f = self.inv_freq.to(positions.device)
        if self.kind not in ("dynamic", "longrope"):
            return f
        if reach is None:
            reach = (positions.max() + 1).reshape(1)
        reach = reach.to(positions.device).unsqueeze(-1)
        if self.kind == "longrope":
            old = self.rope.get("original_max_position_embeddings") or self.max_positions
            long = torch.tensor(self.rope["long_factor"], dtype=torch.float32, device=f.device)
            short = torch.tensor(self.rope["short_factor"], dtype=torch.float32, device=f.device)
            return torch.where(reach > old, f * short / long, f)
        old, factor = self.max_positions, self.rope["factor"]
        stretch = factor * torch.clamp(reach, min=old).float() / old - (factor - 1)
        theta = float(self.rope["rope_theta"]) * stretch ** (self.dim / (self.dim - 2))
        return theta ** -(torch.arange(0, self.dim, 2, device=f.device) / self.dim)

    @torch.no_grad()
    def forward(self, positions: Tensor, dtype: torch.dtype, reach=None) -> tuple[Tensor, Tensor]:
        """positions (T,) -> cos, sin (T, 1, dim/2), to be broadcast over heads."""
        with torch.autocast(positions.device.type, enabled=False):
            angles = positions[:, None].float() * self._frequencies(positions, reach)
            cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        return cos.to(dtype).unsqueeze(1), sin.to(dtype).unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Turns the first 2 * cos.shape[-1] features of x (..., T, heads, D); the rest passes through."""
    half = cos.shape[-1]
    turned = x[..., : 2 * half]
    x1, x2 = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
        y = torch.stack([y1, y2], -1).flatten(-2) if interleaved else torch.cat([y1, y2], -1)
        y = y.to(x.dtype)  # under autocast x is of lower precision than cos
        return y if 2 * half == x.shape[-1] else torch.cat([y, x[..., 2 * half :]], -1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    y = out[..., : 2 * half]
    y1, y2 = (y[..., 0::2], y[..., 1::2]) if interleaved else (y[..., :half], y[..., half:])
    torch.mul(x1, cos, out=y1).addcmul_(x2, sin, value=-1)
    torch.mul(x2, cos, out=y2).addcmul_(x1, sin)
    if 2 * half != x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]
    return out
