"""What attention means, item by item, on every backend that this machine has."""

from __future__ import annotations

import math

import pytest
import torch

from headway.attention import BackendRefused, attention, attention_full, masks, reference_attention
from tests.attention.util import assert_close, backend, plain, reference

EVERY = ["eager", "sdpa", "sdpa:flash", "sdpa:math", "tiled"]
OWN = ["eager", "tiled"]  # every feature
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def qkv(b=2, hq=4, hkv=2, lq=5, lk=7, d=8, dv=None, dtype=torch.float32):
    g = torch.Generator().manual_seed(3)
    make = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64).to(dtype)
    return make(b, hq, lq, d), make(b, hkv, lk, d), make(b, hkv, lk, dv or d)


def check(name, q, k, v, **call):
    need = () if name.startswith("sdpa") else ("lse",)
    grad = True
    try:
        got = backend(name, q, k, v, call, need=need, grad=grad)
    except BackendRefused:
        pytest.fail(f"{name} refuses what it must do")
    want = reference(q, k, v, call, with_lse=bool(need))
    assert_close(got, want, plain(q, k, v, call, with_lse=bool(need)), q.dtype)
    return got


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("lq, lk", [(2, 5), (5, 2), (1, 6), (6, 6)])
def test_causal_is_bottom_right_aligned(name, lq, lk):
    check(name, *qkv(lq=lq, lk=lk), mask=masks.causal())


@pytest.mark.parametrize("name", EVERY)
def test_two_queries_on_five_keys_by_hand(name):
    """With equal scores an output is the mean of the values it sees: keys 0-3 and 0-4."""
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4)
    v = torch.arange(5.0).view(1, 1, 5, 1).expand(1, 1, 5, 4).contiguous()
    out = attention(q, k, v, mask=masks.causal(), backend=name)
    torch.testing.assert_close(out[0, 0, :, 0], torch.tensor([1.5, 2.0]))
    out = attention(torch.zeros(1, 1, 5, 4), k[:, :, :2], v[:, :, :2], mask=masks.causal(), backend=name)
    torch.testing.assert_close(out[0, 0, :, 0], torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5]))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("total", [1, 3, 7, 50])
def test_sliding_total_sees_so_many_keys(name, total):
    q, k = torch.zeros(1, 1, 7, 4), torch.zeros(1, 1, 7, 4)
    v = torch.eye(7).view(1, 1, 7, 7)[..., :4].contiguous()
    seen = attention_full(q, k, v, mask=masks.sliding(total=total), backend="eager", need=("weights",)).weights[0, 0] > 0
    assert seen.sum(-1).tolist() == [min(i + 1, total) for i in range(7)]
    check(name, *qkv(lq=7, lk=7), mask=masks.sliding(total=total))


@pytest.mark.parametrize("name", EVERY)
def test_left_padding_with_causal_and_window(name):
    real = torch.ones(2, 7, dtype=torch.bool)
    real[0, :3] = False
    check(name, *qkv(lq=7, lk=7), mask=masks.padding(real) & masks.sliding(total=3))


@pytest.mark.parametrize("name", EVERY)
def test_documents_with_padding(name):
    ids = torch.tensor([[0, 0, 0, 1, 1, -1, -1], [0, 1, 1, 1, 2, 2, 2]])
    check(name, *qkv(lq=7, lk=7), mask=masks.documents(ids) & masks.causal())


@pytest.mark.parametrize("name", EVERY)
def test_documents_are_the_same_as_separate_sequences(name):
    q, k, v = qkv(b=1, lq=9, lk=9)
    mask = masks.documents.from_cu_seqlens(torch.tensor([0, 4, 5, 9])) & masks.causal()
    whole = attention(q, k, v, mask=mask, backend=name)
    apart = [
        reference_attention(*(t[:, :, a:b] for t in (q, k, v)), mask=masks.causal()).output for a, b in ((0, 4), (4, 5), (5, 9))
    ]
    torch.testing.assert_close(whole.double(), torch.cat(apart, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_rows_give_zeros_and_zero_gradients(name, dtype):
    q, k, v = (t.requires_grad_() for t in qkv(dtype=dtype))
    mask = masks.lengths(kv=torch.tensor([0, 7]), q=torch.tensor([5, 2]))
    need = () if name.startswith("sdpa") else ("lse",)
    result = attention_full(q, k, v, mask=mask, backend=name, need=need)
    out = result.output
    assert (out[0] == 0).all() and (out[1, :, 2:] == 0).all() and torch.isfinite(out).all() and (out[1, :, :2] != 0).any()
    gq, gk, gv = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert (gq[0] == 0).all() and (gq[1, :, 2:] == 0).all() and (gk[0] == 0).all() and (gv[0] == 0).all()
    assert all(torch.isfinite(g).all() for g in (gq, gk, gv)) and (gv[1] != 0).any()
    if need:
        assert (result.lse[0] == -math.inf).all() and torch.isfinite(result.lse[1, :, :2]).all()


@pytest.mark.parametrize("name", OWN)
def test_an_empty_row_with_a_sink_has_the_sinks_log_sum_exp(name):
    q, k, v = qkv()
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    result = attention_full(
        q, k, v, mask=masks.lengths(kv=torch.tensor([0, 7])), sink_logits=sinks, backend=name, need=("lse",)
    )
    torch.testing.assert_close(result.lse[0], sinks[:, None].expand(-1, 5))
    assert (result.output[0] == 0).all()


@pytest.mark.parametrize("name", OWN)
def test_softcap_with_a_dense_mask_and_a_cache(name):
    """One new query on a right-padded cache, positions explicit."""
    q, k, v = qkv(lq=1, lk=9)
    dense = torch.rand(1, 1, 1, 9) > 0.3
    mask = masks.lengths(kv=torch.tensor([4, 9])) & masks.causal() & masks.dense(dense)
    check(name, q, k, v, mask=mask.bind(1, 9, batch=2, heads=4, q_positions=torch.tensor([[3], [8]])), softcap=1.5)


@pytest.mark.parametrize("name", OWN)
def test_softcap_changes_the_output_and_comes_before_the_bias(name):
    q, k, v = qkv()
    bias = 10 * torch.randn(1, 4, 5, 7)
    got = check(name, q, k, v, softcap=0.5, bias=bias)
    assert not torch.allclose(got["output"], backend(name, q, k, v, {"bias": bias})["output"], atol=1e-2)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("other", ["prefix", "dense"])
def test_a_union_with_causal_keeps_both_parts(name, other):
    part = masks.prefix(3) if other == "prefix" else masks.dense(torch.rand(5, 7) > 0.6)
    check(name, *qkv(), mask=masks.causal() | part)


@pytest.mark.parametrize("name", EVERY)
def test_query_head_h_reads_key_head_h_over_group(name):
    """Six query heads on two key heads: heads 0-2 read the first (groups of 3 are not 2 apart)."""
    q, k = torch.zeros(1, 6, 1, 4), torch.zeros(1, 2, 3, 4)
    v = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1).expand(1, 2, 3, 4).contiguous()
    out = attention(q, k, v, backend=name)
    assert out[0, :, 0, 0].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    check(name, *qkv(hq=6, hkv=2))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sinks(name, dtype):
    q, k, v = qkv(dtype=dtype)
    check(name, q, k, v, sink_logits=torch.tensor([1.0, -2.0, 0.0, 3.0], dtype=dtype), mask=masks.causal())


@pytest.mark.parametrize("name", OWN)
def test_a_sink_takes_mass_and_gives_no_value(name):
    """One key with score 0 and a sink of 0 share the mass: half of the value comes out."""
    out = attention(
        torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 1, 4), sink_logits=torch.zeros(1), backend=name
    )
    torch.testing.assert_close(out, torch.full((1, 1, 1, 4), 0.5))


@pytest.mark.parametrize("name", ["eager", "sdpa", "sdpa:math", "tiled"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (4, 5, 7), (5, 7), (1, 4, 1, 7), (2, 1, 5, 1)])
def test_the_bias_gets_its_gradient_in_every_broadcast_shape(name, shape):
    check(name, *qkv(), bias=torch.randn(shape), mask=masks.causal())


@pytest.mark.parametrize("name", EVERY)
def test_a_scale_of_one_is_honoured(name):
    q, k, v = qkv()
    got = check(name, q, k, v, scale=1.0)
    assert not torch.allclose(got["output"], backend(name, q, k, v, {}, need=())["output"], atol=1e-3)


@pytest.mark.parametrize("name", [*EVERY, "auto"])
@pytest.mark.parametrize("cap", [0.0, -1.0, math.inf, math.nan])
def test_a_softcap_that_is_not_positive_and_finite_is_refused(name, cap):
    with pytest.raises(ValueError, match="positive and finite"):
        attention(*qkv(), softcap=cap, backend=name)


@pytest.mark.parametrize("name", EVERY)
def test_a_mask_built_for_another_length_is_refused(name):
    with pytest.raises(ValueError, match="another length"):
        attention(*qkv(), mask=masks.causal().bind(5, 8), backend=name)
    with pytest.raises(ValueError, match="another length"):
        attention(*qkv(), mask=masks.dense(torch.ones(5, 6).bool()), backend=name)


@pytest.mark.parametrize("name", ["eager", "sdpa", "sdpa:math", "tiled"])
def test_dropout_is_off_unless_asked_reproducible_and_scaled(name):
    q, k, v = qkv(b=4, lq=64, lk=64, d=16)
    assert torch.equal(attention(q, k, v, backend=name), attention(q, k, v, backend=name))
    torch.manual_seed(5)
    first = attention(q, k, v, dropout_p=0.3, backend=name)
    torch.manual_seed(5)
    assert torch.equal(first, attention(q, k, v, dropout_p=0.3, backend=name))
    assert not torch.equal(first, attention(q, k, v, dropout_p=0.3, backend=name))
    ones = torch.ones_like(v)  # the rows' kept mass, whose mean is one
    total = torch.stack([attention(q, k, ones, dropout_p=0.3, backend=name) for _ in range(8)])
    assert abs(float(total.mean()) - 1.0) < 0.01 and float(total.std()) > 0.01


@pytest.mark.parametrize("name", OWN)
def test_dropped_weights_are_zero_the_rest_is_scaled_and_the_backward_pass_uses_the_same_choice(name):
    q, k, v = qkv(b=1, hq=4, hkv=2, lq=70, lk=90, dtype=torch.float64)
    mask = masks.sliding(total=40)
    torch.manual_seed(1)
    with torch.no_grad():
        weights = attention_full(q, k, v, mask=mask, dropout_p=0.25, backend=name, need=("weights",)).weights
    full = reference_attention(q, k, v, mask=mask).weights
    keep = weights != 0
    torch.testing.assert_close(weights, full * keep / 0.75)
    assert abs(float(keep[full > 0].double().mean()) - 0.75) < 0.02
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    torch.manual_seed(1)
    out = attention(*inputs, mask=mask, dropout_p=0.25, backend=name)
    want_inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    want = reference_attention(*want_inputs, mask=mask, keep=keep, dropout_p=0.25).output
    torch.testing.assert_close(out, want)
    for got, wanted in zip(torch.autograd.grad(out.sin().sum(), inputs), torch.autograd.grad(want.sin().sum(), want_inputs)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", [*EVERY, "auto"])
def test_float_and_bool_tensors_are_no_masks(name):
    with pytest.raises(TypeError, match="bias="):
        attention(*qkv(), mask=torch.zeros(5, 7), backend=name)
    with pytest.raises(TypeError, match="masks.dense"):
        attention(*qkv(), mask=torch.ones(5, 7).bool(), backend=name)


@pytest.mark.parametrize("name", OWN)
def test_values_of_another_width_and_the_compatibility_scores(name):
    q, k, v = qkv(dv=6)
    check(name, q, k, v, mask=masks.causal())
    half = [t.bfloat16() for t in (q, k, v)]
    rounded = attention(*half, scores="input", backend=name).double()
    s = (half[0].float() @ half[1].float().repeat_interleave(2, 1).transpose(-1, -2) * 8**-0.5).bfloat16().double()
    want = torch.softmax(s, -1) @ half[2].double().repeat_interleave(2, 1)
    torch.testing.assert_close(rounded, want, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", OWN)
def test_autocast_changes_neither_scores_nor_gradients(name):
    q, k, v = (t.requires_grad_() for t in qkv())

    def call():
        return attention(q, k, v, mask=masks.causal(), softcap=2.0, backend=name)

    want = call()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = call()
    grads = [torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (got, want)]  # outside, as PyTorch advises
    assert got.dtype == torch.float32
    torch.testing.assert_close((got, *grads[0]), (want, *grads[1]))


@pytest.mark.parametrize("name", [*EVERY, "auto"])
@pytest.mark.parametrize("shape", [(0, 2, 4, 8), (1, 2, 0, 8)])
def test_nothing_to_do(name, shape):
    x = torch.randn(shape, requires_grad=True)
    out = attention(x, x, x, mask=masks.causal(), backend=name)
    assert out.shape == shape
    out.sum().backward()


@pytest.mark.parametrize("name", EVERY)
def test_no_keys_at_all(name):
    q, k, v = qkv(lk=0)
    assert (attention(q, k, v, backend=name) == 0).all()


@pytest.mark.parametrize("name", EVERY)
def test_autocast_does_not_cast_the_inputs_of_a_call(name):
    q, k, v = (t.requires_grad_() for t in qkv())
    mask = masks.causal()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k, v, mask=mask, backend=name)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), reference_attention(q, k, v, mask=mask).output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("b, lq", [(0, 5), (2, 0)])
def test_an_empty_batch_and_no_queries_at_all(name, b, lq):
    q, k, v = (t.requires_grad_() for t in qkv(b=b, lq=lq))
    out = attention(q, k, v, mask=masks.causal() if lq else None, backend=name)
    assert out.shape == q.shape
    assert [g.shape for g in torch.autograd.grad(out.sum(), (q, k, v))] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("name", EVERY)
def test_a_bias_of_minus_infinity_over_a_whole_row_gives_zeros(name):
    q, k, v = qkv()
    bias = torch.zeros(5, 7)
    bias[2], bias[3, 1] = -torch.inf, -torch.inf
    q.requires_grad_()
    out = attention(q, k, v, bias=bias, backend=name)
    assert (out[:, :, 2] == 0).all()
    torch.testing.assert_close(out.double(), reference_attention(q, k, v, bias=bias).output, atol=1e-5, rtol=1e-5)
    grad = torch.autograd.grad(out.sum(), q)[0]
    assert torch.isfinite(grad).all() and (grad[:, :, 2] == 0).all()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_bias_on_half_inputs_loses_nothing(name, dtype):
    """Added as float32: 64.03 rounds to 64 in either half type."""
    q, k, v = (torch.zeros(1, 1, 1, 8, dtype=dtype), torch.zeros(1, 1, 2, 8, dtype=dtype), None)
    v = torch.tensor([0.0, 1.0], dtype=dtype).view(1, 1, 2, 1).expand(1, 1, 2, 8).contiguous()
    bias = torch.tensor([[64.0, 64.03]]) * 32
    out = attention(q, k, v, bias=bias, backend=name)
    want = 1 / (1 + math.exp(-0.96))
    assert abs(float(out[0, 0, 0, 0]) - want) < 4e-3


@pytest.mark.parametrize(
    "change, error, says",
    [
        (lambda q, k, v: (q[0], k, v), ValueError, "batch, heads, length, head_dim"),
        (lambda q, k, v: (q, k, v[:, :, :3]), ValueError, "must agree"),
        (lambda q, k, v: (q[:, :3], k, v), ValueError, "multiple"),
        (lambda q, k, v: (q, k.double(), v), TypeError, "one floating dtype"),
        (lambda q, k, v: (q.long(), k.long(), v.long()), TypeError, "floating dtype"),
    ],
)
def test_malformed_tensors_are_refused(change, error, says):
    with pytest.raises(error, match=says):
        attention(*change(*qkv()))


@pytest.mark.parametrize(
    "call, error, says",
    [
        ({"dropout_p": 1.0}, ValueError, r"\[0, 1\)"),
        ({"scale": math.nan}, ValueError, "finite"),
        ({"scores": "half"}, ValueError, "'fp32' or 'input'"),
        ({"bias": torch.ones(5, 7).bool()}, TypeError, "masks.dense"),
        ({"bias": torch.ones(5, 6)}, ValueError, "broadcast"),
        ({"sink_logits": torch.ones(3)}, ValueError, "one per query head"),
        ({"backend": "flash9"}, ValueError, "known"),
    ],
)
def test_malformed_arguments_are_refused(call, error, says):
    with pytest.raises(error, match=says):
        attention(*qkv(), **call)
