"""Norms, activations, the gated MLP and pooling, against formulas in float64 and transformers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from transformers.activations import ACT2FN

from headway.errors import InputError
from headway.nn.mlp import ACTIVATIONS, GatedMLP, activation
from headway.nn.norms import RMSNorm, UnitOffsetRMSNorm
from headway.nn.pooling import first, last, mean


@pytest.mark.parametrize("dtype, near", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("norm, offset", [(RMSNorm, 0.0), (UnitOffsetRMSNorm, 1.0)])
def test_rms_norms_equal_their_formula(norm, offset, dtype, near):
    module = norm(32, eps=1e-3).to(dtype)
    torch.nn.init.normal_(module.weight)
    x = (torch.randn(2, 5, 32) * 1e-2).to(dtype)  # small, so that eps counts
    wide = x.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt() * (offset + module.weight.double())
    got = module(x)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, atol=near, rtol=near)


def test_rms_norm_statistics_do_not_overflow_in_half_precision():
    x = torch.full((1, 8), 3e4, dtype=torch.float16)
    torch.testing.assert_close(RMSNorm(8).half()(x), torch.ones(1, 8, dtype=torch.float16))


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu6", "silu",
                                  "swish", "tanh", "sigmoid", "mish", "leaky_relu", "linear", "gelu_python"])  # fmt: skip
def test_activations_equal_transformers(name):
    x = torch.linspace(-6, 6, 101)
    torch.testing.assert_close(activation(name)(x), ACT2FN[name](x), atol=1e-5, rtol=1e-5)


def test_every_activation_is_compared_and_an_unknown_one_refused():
    assert len(ACTIVATIONS) == 15
    with pytest.raises(InputError, match="unknown activation 'wave'"):
        activation("wave")


@pytest.mark.parametrize("grad", [False, True])
def test_the_gated_mlp_equals_its_formula_and_leaves_its_input_alone(grad):
    mlp = GatedMLP(8, 12, "linear", bias=True)  # the identity: the place where in-place work would show
    x = torch.randn(1, 5, 8)
    kept = x.clone()
    with torch.set_grad_enabled(grad):
        got = mlp(x)
    want = F.linear(mlp.gate_proj(x) * mlp.up_proj(x), mlp.down_proj.weight, mlp.down_proj.bias)
    torch.testing.assert_close(got, want)
    assert torch.equal(x, kept)


def test_empty_sequences_pool_to_zeros_and_take_no_token_of_a_neighbour():
    x, cu = torch.tensor([[[1.0], [3.0], [10.0]]]), torch.tensor([0, 0, 2, 2, 3, 3])
    assert first(x, cu).flatten().tolist() == [0, 1, 0, 10, 0]
    assert last(x, cu).flatten().tolist() == [0, 3, 0, 10, 0]
    assert mean(x, cu).flatten().tolist() == [0, 2, 0, 10, 0]
    for pool in (first, last, mean):
        assert pool(x[:, :0], torch.tensor([0, 0, 0])).tolist() == [[0.0], [0.0]]


def test_tokens_beyond_the_last_sequence_are_pooled_nowhere():
    """What compiled packing leaves at the end of the row."""
    x = torch.tensor([[[1.0], [3.0], [99.0]]])
    assert mean(x, torch.tensor([0, 2])).item() == 2 and last(x, torch.tensor([0, 2])).item() == 3


@pytest.mark.parametrize("pool", [first, last, mean])
def test_pooling_has_the_right_gradient(pool):
    x = torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pool(x, torch.tensor([0, 2, 2, 5])), x)
