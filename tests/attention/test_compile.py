"""Compiled calls: one full graph with dynamic shapes, training and evaluation, with and without padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from headway.attention import attention, attention_backend, masks, record_plans, reference_attention

LENGTHS = (5, 6, 9, 12, 17, 30)


def counted():
    torch._dynamo.reset()
    return CompileCounterWithBackend("aot_eager")


def padded(batch, length):
    real = torch.ones(batch, length, dtype=torch.bool)
    real[0, : length // 2] = False
    return real


class Block(nn.Module):
    """Attention layers that share one bound mask, as models do."""

    def __init__(self, backend: str, layers: int):
        super().__init__()
        self.backend = backend
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(layers))

    def forward(self, x, real=None):
        length = x.shape[1]
        mask = masks.causal() if real is None else masks.causal() & masks.padding(real)
        bound = mask.bind(length, length, batch=x.shape[0], device=x.device)
        for layer in self.layers:
            q, k, v = layer(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            x = x + attention(q, k, v, mask=bound, layer_backend=self.backend).transpose(1, 2).flatten(2)
        return x


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("layers", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_one_graph_over_lengths(backend, with_padding, train, layers):
    counter = counted()
    block = Block(backend, layers)
    compiled = torch.compile(block, backend=counter, fullgraph=True, dynamic=True)
    for length in LENGTHS:
        x = torch.randn(3, length, 8)
        real = padded(3, length) if with_padding else None
        with torch.set_grad_enabled(train):
            got = compiled(x, real)
            want = block(x, real)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        if train:
            grads = [torch.autograd.grad(y.square().sum(), list(block.parameters())) for y in (got, want)]
            torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("mask", [masks.causal(), masks.sliding_bidirectional(radius=3), masks.lengths(kv=3)])
def test_flex_with_a_mask_refuses_to_be_part_of_a_compiled_graph_on_the_cpu(mask):
    """PyTorch's compiler finds no kernel there: a clear reason instead of its error."""
    counted()
    call = torch.compile(lambda q: attention(q, q, q, mask=mask, backend="flex"), backend="eager", fullgraph=True)
    with torch.no_grad(), pytest.raises(Exception, match="part of a compiled graph"):
        call(torch.randn(2, 2, 5, 16))


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None])
def test_flex_forward_compiles_once(mask):
    counter = CompileCounterWithBackend("inductor")
    torch._dynamo.reset()
    call = torch.compile(lambda q: attention(q, q, q, mask=mask, backend="flex"), backend=counter, fullgraph=True, dynamic=True)
    for length in LENGTHS:
        q = torch.randn(2, 2, length, 16)
        with torch.no_grad():
            got = call(q)
        torch.testing.assert_close(got.double(), reference_attention(q, q, q, mask=mask).output, atol=1e-5, rtol=1e-5)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("mask", ["documents", "ids", "lengths", "predicate", "union"])
def test_every_kind_of_mask_traces(mask):
    counter = counted()

    def build(length):
        cu = torch.tensor([0, length // 2, length])
        return {
            "documents": masks.documents.from_cu_seqlens(cu) & masks.causal(),
            "ids": masks.documents((torch.arange(length) >= length // 2).long()) & masks.sliding(total=3),
            "lengths": masks.lengths(kv=torch.tensor([length - 2])) & masks.chunked(4),
            "predicate": masks.predicate(lambda b, h, q, k: (q - k) % 2 == 0) & masks.causal(),
            "union": masks.causal() | masks.prefix(torch.tensor([3])),
        }[mask]

    call = torch.compile(lambda q, m: attention(q, q, q, mask=m), backend=counter, fullgraph=True, dynamic=True)
    for length in (6, 8, 13):
        q = torch.randn(1, 2, length, 8)
        want = reference_attention(q, q, q, mask=build(length)).output
        torch.testing.assert_close(call(q, build(length)).double(), want, atol=1e-5, rtol=1e-5)


def test_a_context_switches_the_backend_of_compiled_code():
    """Dynamo guards on the context: another backend is another graph, and coming back reuses the first."""
    counter = counted()
    call = torch.compile(lambda q: attention(q, q, q, mask=masks.causal()), backend=counter, fullgraph=True, dynamic=True)
    q = torch.randn(1, 2, 6, 8)
    graphs = []
    for name in ("auto", "eager", "tiled", "auto", "eager"):
        with attention_backend(name):
            call(q)
        graphs.append(counter.frame_count)
    first = graphs[0]  # 1, or 2 where PyTorch compiles anew once it knows which numbers are constants
    assert graphs == [first, first + 1, first + 2, first + 2, first + 2] and first <= 2


@pytest.mark.parametrize("name", ["eager", "tiled"])
def test_a_context_entered_inside_compiled_code(name):
    def call(q):
        with attention_backend(name):
            return attention(q, q, q, softcap=2.0, mask=masks.causal())

    q = torch.randn(1, 2, 6, 8)
    counter = counted()
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return counter(graph, inputs)

    got = torch.compile(call, backend=keep, fullgraph=True, dynamic=True)(q)
    torch.testing.assert_close(
        got.double(), reference_attention(q, q, q, softcap=2.0, mask=masks.causal()).output, atol=1e-5, rtol=1e-5
    )
    assert ("headway.tiled" in graphs[0] or "headway_tiled" in graphs[0]) == (name == "tiled")
    assert chosen_now() == "sdpa"  # nothing of it stays behind


def chosen_now() -> str:
    q = torch.randn(1, 2, 6, 8)
    with record_plans() as plans:
        attention(q, q, q)
    return plans[0][0].backend.name


def test_causal_sdpa_in_training_builds_no_mask_and_runs_the_flash_kernel():
    length = 2048  # the kernel's own buffers, about 1 MiB a thread, do not grow with it
    q, k, v = (torch.randn(1, 4, length, 16, requires_grad=True) for _ in range(3))
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, record_plans() as plans:
        attention(q, k, v, mask=masks.causal(), backend="sdpa").sum().backward()
    names = {e.key for e in seen.key_averages()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in names
    assert "aten::_scaled_dot_product_attention_math" not in names
    assert [a.code for a in plans[0][0].adaptations] == []
    largest = max(e.nbytes() for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    assert largest < length * length  # smaller than a bool mask, let alone scores


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_gradient_checkpointing(backend):
    from torch.utils.checkpoint import checkpoint

    q = torch.randn(1, 2, 9, 8, requires_grad=True)

    def call(q):
        return attention(q, q, q, mask=masks.causal(), backend=backend)

    kept, again = call(q), checkpoint(call, q, use_reentrant=False)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), q)[0] for y in (kept, again)))


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_export_with_a_dynamic_length(backend):
    class Call(nn.Module):
        def forward(self, q):
            return attention(q, q, q, mask=masks.sliding(total=4), backend=backend)

    q = torch.randn(2, 2, 9, 8)
    length = torch.export.Dim("length", min=2, max=4096)
    exported = torch.export.export(Call(), (q,), dynamic_shapes={"q": {2: length}})
    for n in (9, 17):
        q = torch.randn(2, 2, n, 8)
        want = reference_attention(q, q, q, mask=masks.sliding(total=4)).output
        torch.testing.assert_close(exported.module()(q).double(), want, atol=1e-5, rtol=1e-5)
