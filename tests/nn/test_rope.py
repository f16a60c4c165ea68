"""Rotary embedding: frequencies of every scaling against transformers, angles by hand."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headway.errors import InputError
from headway.nn.rope import RotaryEmbedding, frequencies, rotate

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SCALINGS = [
    dict(rope_type="linear", factor=4.0),
    LLAMA3,
    {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192},
    dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
    dict(rope_type="yarn", factor=16.0, beta_fast=16.0, beta_slow=2.0, original_max_position_embeddings=64),
    dict(rope_type="yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.0, original_max_position_embeddings=64),
    dict(rope_type="yarn", factor=4.0, attention_factor=1.5, truncate=False, original_max_position_embeddings=64),
    dict(rope_type="longrope", short_factor=[1.1] * 16, long_factor=[2.0 + i for i in range(16)],
         original_max_position_embeddings=64),
    dict(rope_type="longrope", short_factor=[1.1] * 16, long_factor=[3.0] * 16, original_max_position_embeddings=64,
         attention_factor=1.25),
]  # fmt: skip


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_and_factors_equal_transformers(scaling, theta):
    rope = {"rope_theta": theta, **scaling}
    config = hf.LlamaConfig(hidden_size=128, num_attention_heads=4, max_position_embeddings=512, rope_parameters=dict(rope))
    want, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    got, ours = frequencies(rope, 32, 512)
    torch.testing.assert_close(got, want, atol=0, rtol=1e-6)
    assert ours == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("length", [40, 64, 65, 200])
def test_dynamic_scaling_equals_transformers_at_every_length(length):
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
    config = hf.LlamaConfig(hidden_size=128, num_attention_heads=4, max_position_embeddings=64, rope_parameters=dict(rope))
    want, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=length)
    positions = torch.arange(length)
    cos, sin = RotaryEmbedding(rope, 32, 64)(positions, torch.float32, torch.tensor([length]))
    angles = positions[:, None].double() * want.double()
    torch.testing.assert_close(cos[:, 0].double(), angles.cos(), atol=3e-5, rtol=0)
    torch.testing.assert_close(sin[:, 0].double(), angles.sin(), atol=3e-5, rtol=0)


def test_sequences_of_a_batch_do_not_share_their_length():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
    module = RotaryEmbedding(rope, 8, 4)
    together = module(torch.tensor([2, 2]), torch.float32, torch.tensor([3, 9]))
    for i, reach in enumerate((3, 9)):
        alone = module(torch.tensor([2]), torch.float32, torch.tensor([reach]))
        assert all(torch.equal(a[i], b[0]) for a, b in zip(together, alone))


def test_longrope_takes_the_long_factors_beyond_the_original_length():
    rope = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 2.0], long_factor=[4.0, 8.0],
                original_max_position_embeddings=8, attention_factor=1.0)  # fmt: skip
    module = RotaryEmbedding(rope, 4, 32)
    for reach, factors in ((8, (1.0, 2.0)), (9, (4.0, 8.0))):
        cos, _ = module(torch.tensor([5]), torch.float32, torch.tensor([reach]))
        want = torch.cos(5.0 * torch.tensor([1.0, 0.01]) / torch.tensor(factors))
        torch.testing.assert_close(cos[0, 0], want)


def test_angles_are_fp32_also_for_bfloat16_and_under_autocast():
    """A position of 100,003 does not exist in bfloat16 (field: bf16 table, word salad on long prompts)."""
    module = RotaryEmbedding({"rope_theta": 1e4}, 64, 2**17)
    position = torch.tensor([100_003])
    want, _ = module(position, torch.float32)
    exact = (position.double() * 1e4 ** -(torch.arange(0, 64, 2).double() / 64)).cos()
    torch.testing.assert_close(want[0, 0].double(), exact, atol=1e-2, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(position, torch.float32)[0], want)
    assert torch.equal(module.to(torch.float32)(position, torch.bfloat16)[0], want.bfloat16())


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_rotation_is_a_product_of_complex_numbers(interleaved, grad):
    x = torch.randn(1, 5, 3, 10, dtype=torch.float64)
    angles = torch.randn(5, 1, 4, dtype=torch.float64)
    turned = x[..., :8]
    pairs = turned.unflatten(-1, (4, 2)) if interleaved else turned.unflatten(-1, (2, 4)).transpose(-1, -2)
    product = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles))
    want = (product if interleaved else product.transpose(-1, -2)).flatten(-2)
    with torch.set_grad_enabled(grad):
        got = rotate(x, angles.cos(), angles.sin(), interleaved)
    torch.testing.assert_close(got[..., :8], want)
    assert torch.equal(got[..., 8:], x[..., 8:])  # partial: the rest passes through


def test_a_rotation_keeps_the_dtype_of_what_it_turns():
    x, angle = torch.randn(1, 2, 1, 4).bfloat16(), torch.ones(2, 1, 2)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            assert rotate(x, angle, angle).dtype == torch.bfloat16


def test_the_rotation_has_the_right_gradient():
    x = torch.randn(1, 3, 2, 6, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(3, 1, 2, dtype=torch.float64)
    for interleaved in (False, True):
        assert torch.autograd.gradcheck(lambda x: rotate(x, angles.cos(), angles.sin(), interleaved), x)  # noqa: B023


def test_an_unknown_scaling_is_refused():
    with pytest.raises(InputError, match="unknown rope_type 'spiral'; known"):
        frequencies({"rope_type": "spiral", "rope_theta": 1e4}, 8, 64)
