"""Activations by their Hugging Face names, and the gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import InputError


def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x) (CLIP)."""
    return x * torch.sigmoid(1.702 * x)


gelu_tanh = partial(F.gelu, approximate="tanh")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_python": F.gelu, "gelu_new": gelu_tanh, "gelu_fast": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu, "relu": F.relu, "relu6": F.relu6, "silu": F.silu, "swish": F.silu, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "mish": F.mish, "leaky_relu": F.leaky_relu, "linear": lambda x: x,
}  # fmt: skip


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name; InputError listing the known ones otherwise."""
    if name not in ACTIVATIONS:
        raise InputError(f"unknown activation {name!r}; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)) (Shazeer 2020). x (..., hidden)."""

    def __init__(self, hidden_size: int, intermediate_size: int, act: str, bias: bool = False):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.act(self.gate_proj(x))
        if torch.is_grad_enabled():
            return self.down_proj(gate * self.up_proj(x))
        return self.down_proj(gate.mul_(self.up_proj(x)))
