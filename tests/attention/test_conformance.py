"""Every backend on random calls that it accepts: output and all gradients within twice the error of plain code."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.attention import BackendRefused, attention, masks
from tests.attention.test_masks import Case, build, trees
from tests.attention.util import assert_close, backend, plain, reference

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
NAMES = ["eager", "sdpa", "sdpa:flash", "sdpa:math", "tiled"]


@st.composite
def calls(draw):
    """(q, k, v, keywords) with features, shapes and masks drawn independently."""
    seed = draw(st.integers(0, 100_000))
    case = Case(seed)
    g = torch.Generator().manual_seed(seed)
    dtype = draw(st.sampled_from(DTYPES))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    case.heads = kv_heads * draw(st.sampled_from([1, 2, 3]))
    case.q_len = draw(st.sampled_from([1, 2, 5, 33, 129]))
    case.kv_len = draw(st.sampled_from([1, 2, 7, 40, 131]))
    case.lengths = torch.randint(0, case.kv_len + 1, (case.batch,), generator=g)
    case.q_lengths = torch.randint(0, case.q_len + 1, (case.batch,), generator=g)
    case.dense = torch.rand(case.batch, case.heads, case.q_len, case.kv_len, generator=g) > 0.4
    case.padding = torch.rand(case.batch, case.kv_len, generator=g) > 0.4
    case.q_ids = torch.sort(torch.randint(-1, 3, (case.batch, case.q_len), generator=g)).values
    case.kv_ids = torch.sort(torch.randint(-1, 3, (case.batch, case.kv_len), generator=g)).values
    case.cu_q = torch.tensor([0, case.q_len // 2, max(case.q_len - 1, case.q_len // 2)])
    case.cu_kv = torch.tensor([0, case.kv_len // 3, max(case.kv_len - 2, case.kv_len // 3)])
    dim = draw(st.sampled_from([1, 8, 20]))
    value_dim = draw(st.sampled_from([dim, dim, 5]))

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    q = normal(case.batch, case.heads, case.q_len, dim)
    k, v = (normal(case.batch, kv_heads, case.kv_len, n) for n in (dim, value_dim))
    if draw(st.booleans()):  # as a projection gives them: heads inside
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    call: dict = {}
    tree = draw(st.one_of(st.none(), trees))
    if tree is not None:
        call["mask"] = build(tree, case.atoms())[0]
    if draw(st.booleans()):
        call["scale"] = draw(st.sampled_from([1.0, 0.3]))
    if draw(st.booleans()):
        call["softcap"] = draw(st.sampled_from([0.7, 5.0]))
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(case.batch, case.heads), (1, case.heads), (1, 1)]))
        call["bias"] = normal(*shape, case.q_len, case.kv_len)
    if draw(st.booleans()):
        call["sink_logits"] = normal(case.heads)
    return q, k, v, call


def conforms(name, drawn):
    q, k, v, call = drawn
    need = () if name.startswith("sdpa") else ("lse",)
    try:
        got = backend(name, q, k, v, call, need=need)
    except BackendRefused as refused:
        assert name not in ("eager", "tiled"), refused
        assume(False)
    with_lse = bool(need)
    want = reference(q, k, v, call, with_lse=with_lse)
    assert_close(got, want, plain(q, k, v, call, with_lse=with_lse), q.dtype)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(drawn=calls())
def test_backends_conform(name, drawn):
    conforms(name, drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=500, derandomize=False)
@given(drawn=calls())
def test_backends_conform_on_many_cases(name, drawn):
    conforms(name, drawn)


@pytest.mark.slow
@settings(max_examples=40, derandomize=False)
@given(drawn=calls())
def test_flex_conforms_forward(drawn):
    q, k, v, call = drawn
    assume(q.dtype != torch.float64)
    try:
        got = backend("flex", q, k, v, call, need=(), grad=False)
    except BackendRefused:
        assume(False)
    want = reference(q, k, v, call, grad=False, with_lse=False)
    assert_close(got, want, plain(q, k, v, call, grad=False, with_lse=False), q.dtype)


@pytest.mark.parametrize("softcap", [None, 1.3])
@pytest.mark.parametrize("documents", [False, True])
def test_gradcheck_of_tiled(softcap, documents):
    """float64, an empty row, a window, sinks, a bias, grouped queries."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, h, n, 3, dtype=torch.float64, requires_grad=True) for h, n in ((4, 6), (2, 7), (2, 7)))
    bias = torch.randn(1, 4, 6, 7, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    mask = masks.sliding(total=4) & masks.lengths(q=torch.tensor([6, 5]))
    if documents:
        mask = mask & masks.documents(torch.tensor([0, 0, 0, 1, 1, -1]), torch.tensor([0, 0, 0, 0, 1, 1, 1]))

    def call(q, k, v, bias, sinks):
        return attention(q, k, v, mask=mask, softcap=softcap, bias=bias, sink_logits=sinks, backend="tiled")

    assert torch.autograd.gradcheck(call, (q, k, v, bias, sinks))


def test_tiled_says_that_it_has_no_second_derivative():
    q = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    grad = torch.autograd.grad(attention(q, q, q, backend="tiled").sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError):
        grad.sum().backward()


def test_tiles_of_many_rows_agree_with_the_reference_at_odd_lengths():
    """Lengths around tile edges, forward only and with gradients, plain and capped."""
    for length in (63, 64, 65, 127, 128, 129, 1023, 1025):
        g = torch.Generator().manual_seed(length)
        q, k, v = (torch.randn(1, 2, length, 8, generator=g) for _ in range(3))
        cu = torch.tensor([0, length // 3, length // 2, length - 1])
        for mask in (None, masks.causal(), masks.documents.from_cu_seqlens(cu), masks.sliding_bidirectional(radius=9)):
            for call in ({}, {"softcap": 2.0}):
                with torch.no_grad():
                    got = attention(q, k, v, mask=mask, backend="tiled", **call)
                want = reference(q, k, v, {"mask": mask, **call}, grad=False, with_lse=False)["output"]
                assert float((got.double() - want).abs().max()) < 5e-6
