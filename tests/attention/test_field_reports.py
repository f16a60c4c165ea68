"""Faults that users of other libraries reported and that attention itself can commit. Each test names its reports.

T = huggingface/transformers, PT = pytorch/pytorch, FA = Dao-AILab/flash-attention, XF = facebookresearch/xformers.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from headway.attention import BackendRefused, attention, attention_full, masks, record_plans, reference_attention
from tests.attention.util import assert_close, backend, plain, reference

EVERY = ["eager", "sdpa", "sdpa:flash", "sdpa:math", "tiled"]
OWN = ["eager", "tiled"]
FLEX = pytest.param("flex", marks=pytest.mark.slow)  # compiles


def qkv(b=1, h=2, hkv=None, lq=6, lk=None, d=8, dtype=torch.float32):
    g = torch.Generator().manual_seed(11)
    make = lambda heads, n: torch.randn(b, heads, n, d, generator=g).to(dtype)
    lk = lq if lk is None else lk
    return make(h, lq), make(hkv or h, lk), make(hkv or h, lk)


def close(got, want, tolerance=1e-5):
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)


def left_padded(batch: int, length: int, pads) -> torch.Tensor:
    return torch.arange(length) >= torch.as_tensor(pads)[:, None].expand(batch, 1)


# ---------------------------------------------------------------- padding and rows that see nothing


@pytest.mark.parametrize("name", EVERY)
def test_bfloat16_with_padding_is_finite_forward_and_backward(name):
    """T#31035, T#45201, PT#156707, PT#167515: NaN from padded rows; right: zeros and finite gradients."""
    q, k, v = (t.requires_grad_() for t in qkv(b=2, lq=12, dtype=torch.bfloat16))
    mask = masks.padding(left_padded(2, 12, [0, 9])) & masks.sliding(total=3)
    out = attention(q, k, v, mask=mask, backend=name)
    assert torch.isfinite(out).all() and (out[1, :, :9] == 0).all()
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert all(torch.isfinite(g).all() for g in grads) and (grads[1][1, :, :9] == 0).all()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("pad", [1, 7, 25, 33])
def test_left_padding_shifts_nothing(name, pad):
    """T PR#47678 (#47651): left padding to length % 32 == 1 shifted logits; right: no dependence on the pad length."""
    q, k, v = qkv(lq=40)
    alone = reference_attention(*(t[:, :, pad:] for t in (q, k, v)), mask=masks.causal()).output
    mask = masks.padding(left_padded(1, 40, [pad])) & masks.causal()
    close(attention(q, k, v, mask=mask, backend=name)[:, :, pad:], alone)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_block_diagonal_bool_mask_equals_separate_sequences(name, dtype, tolerance):
    """PT#108503 (wrong numbers in bf16), axolotl PR#3796 (decontamination differs per backend)."""
    q, k, v = qkv(lq=48, dtype=dtype)
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 30, 13]))
    apart = torch.cat([reference_attention(*(t[:, :, ids == i] for t in (q, k, v))).output for i in range(3)], dim=2)
    for mask in (masks.dense(ids[:, None] == ids), masks.documents(ids)):
        close(attention(q, k, v, mask=mask, backend=name), apart, tolerance)


@pytest.mark.parametrize("name", EVERY)
def test_outputs_do_not_depend_on_the_batch_size(name):
    """ModernBERT#174: zeros for batches above one."""
    q, k, v = qkv(b=5, lq=9)
    whole = attention(q, k, v, mask=masks.sliding_bidirectional(radius=2), backend=name)
    for i in range(5):
        one = attention(*(t[i : i + 1] for t in (q, k, v)), mask=masks.sliding_bidirectional(radius=2), backend=name)
        close(whole[i : i + 1], one)


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize("name", EVERY)
def test_a_window_of_w_sees_w_keys_in_every_backend(name):
    """T#29623, vllm#3385: 2048 keys in one backend, 2049 in another. LlamaFactory#7063: no window at all, silently."""
    length, window = 70, 16
    q, k = torch.zeros(1, 1, length, 8), torch.zeros(1, 1, length, 8)
    v = torch.zeros(1, 1, length, 8)
    v[:, :, length - 1 - window] = 1.0  # the key just outside the last query's window
    v[:, :, length - window] = 2.0  # and the first inside
    out = attention(q, k, v, mask=masks.sliding(total=window), backend=name)
    close(out[0, 0, -1, 0], torch.tensor(2.0 / window))


@pytest.mark.parametrize("name", EVERY)
def test_a_prefill_longer_than_the_window_equals_token_by_token_decoding(name):
    """mlxcel PR#405 (degenerates), T PR#48482 and PR#38156 (mask and positions taken from the cache's length)."""
    q, k, v = qkv(lq=20, hkv=1)
    whole = attention(q, k, v, mask=masks.sliding(total=5), backend=name)
    for i in range(20):  # a cache that holds only the window, in ring order, with true positions
        kept = torch.arange(max(0, i - 4), i + 1)
        ring = kept[torch.argsort(kept % 5)]
        one = attention(
            q[:, :, i : i + 1], k[:, :, ring], v[:, :, ring], mask=masks.sliding(total=5), backend=name,
            q_positions=torch.tensor([i]), kv_positions=ring,
        )  # fmt: skip
        close(one, whole[:, :, i : i + 1])


def test_a_local_window_over_8192_tokens_builds_no_dense_mask():
    """semantic-router PR#1431: a mask of n x n ran out of memory; right: nothing of that size is allocated."""
    from torch.profiler import ProfilerActivity, profile

    q, k, v = qkv(lq=8192, h=1)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, record_plans() as plans:
        attention(q, k, v, mask=masks.sliding_bidirectional(radius=64))
    assert plans[0][0].backend.name == "tiled"
    assert max(e.nbytes() for e in seen.profiler.kineto_results.events() if e.name() == "[memory]") < 8192 * 8192 / 16


# ---------------------------------------------------------------- soft cap, scale


@pytest.mark.parametrize("name", [*EVERY, "auto", FLEX])
def test_a_soft_cap_is_applied_or_refused(name):
    """T#32309, vllm-metal#665, sgl-kernel-xpu PR#491: accepted and never applied. Right: the output follows the cap."""
    q, k, v = qkv(lq=7)
    q = q * 8
    want = reference_attention(q, k, v, softcap=0.5, mask=masks.causal()).output
    assert float((want - reference_attention(q, k, v, mask=masks.causal()).output).abs().max()) > 0.1
    try:
        with torch.no_grad():
            got = attention(q, k, v, softcap=0.5, mask=masks.causal(), backend=name)
    except BackendRefused as refused:
        assert name.startswith("sdpa") and {r.code for r in refused.reasons} == {"softcap"}
    else:
        close(got, want)


@pytest.mark.parametrize("cap", [0.0, -30.0, float("inf")])
def test_soft_caps_without_meaning_are_refused(cap):
    """Megatron-LM PR#6590: 0, negative and inf meant something else in every backend."""
    with pytest.raises(ValueError, match="softcap"):
        attention(*qkv(), softcap=cap)


@pytest.mark.parametrize("name", [*EVERY, FLEX])
def test_a_scale_is_kept_also_with_odd_head_sizes(name):
    """emmy PR#412 (scale=1.0 dropped), FA#1347 and FA#28 (head sizes that are padded change the default scale)."""
    with torch.no_grad():
        q, k, v = qkv(d=12)
        close(attention(q, k, v, scale=1.0, backend=name), reference_attention(q, k, v, scale=1.0).output)
        close(attention(q, k, v, backend=name), reference_attention(q, k, v, scale=12**-0.5).output)


# ---------------------------------------------------------------- alignment, caches


@pytest.mark.parametrize("name", EVERY)
def test_a_static_cache_gives_what_a_growing_one_gives(name):
    """T#30351, T#46132: answers of a preallocated cache differ; right: slots that are not filled yet do not count."""
    q, k, v = qkv(lq=9, hkv=1)
    want = reference_attention(q, k, v, mask=masks.causal()).output
    room = [torch.cat([t, torch.full((1, 1, 7, 8), 1e4)], 2) for t in (k, v)]  # rubbish beyond the true length
    for i in range(9):
        got = attention(q[:, :, i : i + 1], *room, mask=masks.causal(), q_positions=torch.tensor([i]), backend=name)
        close(got, want[:, :, i : i + 1])


@pytest.mark.parametrize("name", EVERY)
def test_one_row_that_is_nearly_all_padding(name):
    """PT#159855: a batch with such a row was not reproducible once generation passed the window."""
    q, k, v = qkv(b=2, lq=30)
    mask = masks.padding(left_padded(2, 30, [0, 29])) & masks.sliding(total=8)
    first, second = (attention(q, k, v, mask=mask, backend=name) for _ in range(2))
    assert torch.equal(first, second)
    close(first, reference_attention(q, k, v, mask=mask).output)


# ---------------------------------------------------------------- positions and packing


@pytest.mark.parametrize("shape", [(6,), (1, 6), (2, 6)])
def test_positions_of_one_or_two_dimensions_are_taken(shape):
    """T PR#47342, PR#44911, FA#2381: 1-D positions crashed. T#39814: so did positions without a 0."""
    q, k, v = qkv(b=2)
    offset = (torch.arange(6) + 40).expand(shape).contiguous()
    got = attention(q, k, v, mask=masks.sliding(total=3), q_positions=offset, kv_positions=offset)
    close(got, reference_attention(q, k, v, mask=masks.sliding(total=3)).output)


def test_positions_of_three_dimensions_are_refused():
    """T PR#44911: read as packed sequences, illegal memory access."""
    with pytest.raises(ValueError, match="accepted are"):
        attention(*qkv(b=2), mask=masks.causal(), q_positions=torch.zeros(3, 2, 6, dtype=torch.long))


@pytest.mark.parametrize("name", EVERY)
def test_packed_samples_do_not_contaminate_each_other(name):
    """trl#3067 (#1230), trl#2834: a change in one document must not reach another, forward or backward."""
    q, k, v = (t.requires_grad_() for t in qkv(lq=10))
    mask = masks.documents.from_cu_seqlens(torch.tensor([0, 4, 10])) & masks.causal()
    out = attention(q, k, v, mask=mask, backend=name)
    for g in torch.autograd.grad(out[:, :, 4:].sum(), (k, v)):
        assert (g[:, :, :4] == 0).all() and (g[:, :, 4:] != 0).any()


# ---------------------------------------------------------------- torch.compile


@pytest.mark.parametrize("name", ["sdpa", "tiled"])
def test_no_branch_on_the_values_of_a_mask_and_few_graphs(name):
    """T#28827, T#37199, PR#37944 (data-dependent breaks), PT#150403 (7 recompiles), T#41803 (batch 1 recompiles)."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def call(q, k, v, real):
        return attention(q, k, v, mask=masks.padding(real) & masks.causal(), backend=name)

    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=True)
    # no two sizes of the first call are equal: PyTorch takes equal ones for one symbol
    for batch, length, pad in ((5, 9, 0), (3, 17, 4), (2, 33, 0), (4, 12, 11), (2, 31, 30)):
        q, k, v = qkv(b=batch, lq=length, h=2)
        real = left_padded(batch, length, [pad] + [0] * (batch - 1))
        close(compiled(q, k, v, real), reference_attention(q, k, v, mask=masks.padding(real) & masks.causal()).output)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["eager", "sdpa", "tiled"])
def test_compiled_gradient_checkpointing(name):
    """PT#97436, PT#108269, PT#144035: errors, or another number of saved tensors."""
    from torch.utils.checkpoint import checkpoint

    torch._dynamo.reset()
    q = torch.randn(1, 2, 9, 8, requires_grad=True)
    call = lambda q: attention(q, q, q, mask=masks.sliding(total=3), backend=name)
    kept = torch.compile(lambda q: checkpoint(call, q, use_reentrant=False), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(*(torch.autograd.grad(f(q).sin().sum(), q)[0] for f in (call, kept)))


@pytest.mark.parametrize("name", ["eager", "sdpa", "tiled"])
def test_checkpointing_drops_the_same_weights_again(name):
    """PT#97436: recomputation must use the forward pass's dropout choice."""
    from torch.utils.checkpoint import checkpoint

    q = torch.randn(1, 2, 9, 8, requires_grad=True)
    call = lambda q: attention(q, q, q, dropout_p=0.5, backend=name)
    grads = []
    for f in (call, lambda q: checkpoint(call, q, use_reentrant=False)):
        torch.manual_seed(3)
        grads.append(torch.autograd.grad(f(q).sin().sum(), q)[0])
    torch.testing.assert_close(*grads)


def test_nothing_is_compiled_unless_asked():
    """T#36145, knowledge-graph PR#1120, T PR#45652: compilers were started behind the user's back."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = torch.randn(1, 2, 6, 8)
    for call in ({}, {"softcap": 2.0}, {"mask": masks.predicate(lambda b, h, q, k: q >= k)}, {"dropout_p": 0.1}):
        attention(x, x, x, **call)
    assert not torch._dynamo.utils.counters["frames"]


def test_export_with_a_dynamic_batch_and_length():
    """PT#180202, PT#152465, PT#124502: exports with dynamic batch, length or masks failed on guards."""

    class Call(torch.nn.Module):
        def forward(self, q, real):
            return attention(q, q, q, mask=masks.padding(real) & masks.causal())

    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=512)
    args = (torch.randn(3, 2, 9, 8), torch.ones(3, 9, dtype=torch.bool))
    exported = torch.export.export(Call(), args, dynamic_shapes=({0: batch, 2: length}, {0: batch, 1: length}))
    q, real = torch.randn(4, 2, 31, 8), left_padded(4, 31, [0, 3, 30, 8])
    close(exported.module()(q, real), reference_attention(q, q, q, mask=masks.padding(real) & masks.causal()).output)


# ---------------------------------------------------------------- flex


def test_flex_on_the_cpu_refuses_to_train_and_says_what_does():
    """PT#148752, PT#169224, PT#136525: cryptic compiler errors."""
    q = torch.randn(1, 2, 16, 16, requires_grad=True)
    with pytest.raises(BackendRefused, match="no backward pass") as caught:
        attention(q, q, q, mask=masks.causal(), backend="flex")
    assert caught.value.nearest == "sdpa"


@pytest.mark.slow
def test_flex_under_no_grad_takes_inputs_that_require_gradients():
    """PT#148752: PyTorch refuses such inputs on the CPU even where no gradient is recorded."""
    q, k, v = (t.requires_grad_() for t in qkv(d=16))
    with torch.no_grad():
        got = attention(q, k, v, mask=masks.causal(), backend="flex")
    close(got, reference_attention(q, k, v, mask=masks.causal()).output.detach())


def test_a_mask_longer_than_the_keys_is_an_error():
    """PT#139462: zeros came out of a block mask made for more keys."""
    q, k, v = qkv(lq=6)
    with pytest.raises(ValueError, match="another length"):
        attention(q, k, v, mask=masks.causal().bind(6, 128), backend="tiled")


@pytest.mark.parametrize("name", OWN)
def test_length_1025_with_a_cap_and_a_mask_is_finite_backward(name):
    """PT#153799: NaN in the gradient one past a block."""
    q, k, v = qkv(lq=1025, h=1)
    call = {"mask": masks.sliding(total=100), "softcap": 2.0}
    assert_close(backend(name, q, k, v, call), reference(q, k, v, call), plain(q, k, v, call), torch.float32)


# ---------------------------------------------------------------- dispatch


@pytest.mark.parametrize("name", ["eager", "sdpa", "sdpa:flash", "tiled"])
@pytest.mark.parametrize("length", [37, 498])
def test_biases_of_any_length_and_layout(name, length):
    """XF#1263, XF#576: no operator for a bias whose rows are not a multiple of 8, or are strided."""
    q, k, v = qkv(lq=length)
    wide = torch.randn(1, 2, length, length + 5)[..., 2:-3]  # neither contiguous nor aligned
    transposed = torch.randn(1, 2, length, length).transpose(2, 3)
    for bias in (wide, transposed):
        close(attention(q, k, v, bias=bias, backend=name), reference_attention(q, k, v, bias=bias).output)


@pytest.mark.parametrize("name", EVERY)
def test_strided_queries_keys_and_values(name):
    """PT#181133, PT#163597: wrong numbers for tensors that are not contiguous."""
    packed = torch.randn(2, 9, 3, 4, 8)  # (B, L, qkv, H, D), as one projection gives it
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    flipped = torch.randn(2, 4, 8, 9).transpose(2, 3)
    for x in (q, flipped):
        close(attention(x, k, v, mask=masks.causal(), backend=name), reference_attention(x, k, v, mask=masks.causal()).output)


@pytest.mark.parametrize("name", EVERY)
def test_grouped_heads_of_width_256_and_more_with_a_mask(name):
    """T PR#46960, ComfyUI PR#15135, PT#149132: grouped heads with wide heads or masks fell to a dense kernel or crashed."""
    q, k, v = qkv(h=4, hkv=2, lq=10, d=264)
    mask = masks.padding(left_padded(1, 10, [2])) & masks.causal()
    close(attention(q, k, v, mask=mask, backend=name), reference_attention(q, k, v, mask=mask).output)


@pytest.mark.parametrize("name", ["sdpa:cudnn", "sdpa:efficient"])
def test_a_named_backend_that_cannot_run_here_raises(name):
    """T#45399, PR#41010 (falls back without a word), unsloth#827, FA#622, peft#790 (fails inside the kernel)."""
    with pytest.raises(BackendRefused, match="cuda"):
        attention(*qkv(), backend=name)


# ---------------------------------------------------------------- dropout, precision


@pytest.mark.parametrize("name", ["eager", "sdpa", "tiled", "auto"])
def test_an_evaluation_call_does_not_switch_dropout_off_for_ever(name):
    """Megatron-LM PR#411: one evaluation set dropout to 0."""
    q, k, v = qkv(lq=32)
    attention(q, k, v, dropout_p=0.0, backend=name)
    dropped = attention(q, k, v, dropout_p=0.5, backend=name)
    assert not torch.allclose(dropped, attention(q, k, v, dropout_p=0.0, backend=name), atol=1e-3)


@pytest.mark.parametrize("name", OWN)
def test_dropped_weights_sum_to_one_only_on_average(name):
    """T#31468: expected, and stated in the documentation of dropout."""
    q, k, v = qkv(h=4, lq=64)
    sums = attention_full(q, k, v, dropout_p=0.25, need=("weights",), backend=name).weights.sum(-1)
    assert abs(float(sums.mean()) - 1.0) < 0.05 and float(sums.std()) > 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", EVERY)
def test_all_backends_drift_no_more_than_plain_code(name, dtype):
    """T#27050, T#27016, T PR#35158, PR#37363, T#39067: backends differ in low precision; right: bounded against float64."""
    q, k, v = qkv(b=2, h=4, hkv=2, lq=100, d=32, dtype=dtype)
    call = {"mask": masks.padding(left_padded(2, 100, [0, 61])) & masks.causal()}
    need = ("lse",) if name in OWN else ()
    want, low = reference(q, k, v, call, with_lse=bool(need)), plain(q, k, v, call, with_lse=bool(need))
    assert_close(backend(name, q, k, v, call, need=need), want, low, dtype)
