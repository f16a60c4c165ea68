"""Planning: static, cached, explained; choosing by argument, context, layer and model."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from torch import nn

from headway.attention import (
    AttentionSpec,
    AttentionSwitch,
    Backend,
    BackendRefused,
    Features,
    Policy,
    attention,
    attention_backend,
    backends,
    masks,
    plan_attention,
    record_plans,
    register_backend,
)
from headway.attention.registry import _backends


def q(**kw):
    return torch.randn(1, 2, 6, 8, **kw)


def test_a_refusal_lists_every_reason_and_the_nearest_backend():
    x = q(dtype=torch.float64, requires_grad=True)
    with pytest.raises(BackendRefused) as caught:
        attention(x, x, x, softcap=2.0, sink_logits=torch.zeros(2), dropout_p=0.1, backend="sdpa:cudnn")
    error = caught.value
    assert {r.code for r in error.reasons} >= {"device", "dtype", "softcap", "sinks"}
    assert error.nearest == "tiled"
    assert all(r.text in str(error) for r in error.reasons) and "'tiled'" in str(error)


def test_flex_on_the_cpu_refuses_training_and_dropout():
    codes = {r.code for r in backends()["flex"].why_not(AttentionSpec(needs_grad=True, dropout=True))}
    assert {"backward", "dropout"} <= codes


def test_explain_says_what_was_chosen_what_stood_above_and_the_bytes_of_a_mask():
    text = plan_attention(AttentionSpec(softcap=True, mask="causal")).explain((1, 8, 1024, 1024))
    assert text.splitlines()[0] == "attention: tiled (auto)"
    assert "not sdpa: sdpa has no soft cap" in text and "dense mask: none built" in text
    text = plan_attention(AttentionSpec(mask="window"), "sdpa").explain((2, 8, 1024, 2048))
    assert "4.0 MiB" in text and "asked for 'sdpa'" in text
    text = plan_attention(AttentionSpec(mask="window")).explain()
    assert "not sdpa: accepts, but" in text


@pytest.mark.parametrize(
    "spec, chosen",
    [
        (AttentionSpec(), "sdpa"),
        (AttentionSpec(mask="causal"), "sdpa"),
        (AttentionSpec(mask="causal", square=False), "tiled"),
        (AttentionSpec(mask="causal", square=False, decode=True), "sdpa"),
        (AttentionSpec(mask="window"), "tiled"),
        (AttentionSpec(mask="documents"), "tiled"),
        (AttentionSpec(mask="dense", tensor_mask=True), "sdpa"),
        (AttentionSpec(softcap=True), "tiled"),
        (AttentionSpec(sinks=True), "tiled"),
        (AttentionSpec(dropout=True, needs_grad=True), "tiled"),
        (AttentionSpec(value_dim=32), "tiled"),
        (AttentionSpec(need=("weights",), needs_grad=True), "eager"),
        (AttentionSpec(device="xpu"), "tiled"),
    ],
)
def test_what_auto_chooses(spec, chosen):
    assert plan_attention(spec).backend.name == chosen


def test_planning_reads_no_values():
    """Meta tensors have none."""
    x = torch.empty(1, 2, 6, 8, device="meta")
    from headway.attention import describe

    assert describe(x, x, x, masks.causal()).mask == "causal"


def test_a_policy_bounds_what_may_be_done():
    x = q()
    with pytest.raises(ValueError, match="MiB"), attention_backend("sdpa", Policy(max_dense_mask_mb=1e-6)):
        attention(x, x, x, mask=masks.window(1, 1))
    with attention_backend("auto", Policy(order=("eager",))), record_plans() as plans:
        attention(x, x, x)
    assert plans[0][0].backend.name == "eager"
    with pytest.raises(BackendRefused, match="policy"), attention_backend("auto", Policy(order=("eager",), allow=frozenset())):
        attention(x, x, x)
    with pytest.raises(ValueError, match="known"), attention_backend("auto", Policy(order=("nothing",))):
        attention(x, x, x)


def chosen(**call) -> str:
    x = q()
    with record_plans() as plans:
        attention(x, x, x, **call)
    return plans[0][0].backend.name


def test_precedence_is_call_then_context_then_layer_then_default():
    assert chosen() == "sdpa"
    assert chosen(layer_backend="eager") == "eager"
    with attention_backend("tiled"):
        assert chosen(layer_backend="eager") == "tiled"
        assert chosen(layer_backend="eager", backend="sdpa:math") == "sdpa:math"
        with attention_backend("eager"):
            assert chosen() == "eager"
        assert chosen() == "tiled"
    assert chosen() == "sdpa"


def test_an_unknown_backend_in_a_context_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="known"), attention_backend("flash99"):
        raise AssertionError("the block must not run")


def test_threads_do_not_disturb_each_other():
    ready, seen = threading.Barrier(2), {}

    def work(name):
        with attention_backend(name):
            ready.wait()
            found = {chosen() for _ in range(20)}
            ready.wait()
        seen[name] = (found, chosen())

    threads = [threading.Thread(target=work, args=(n,)) for n in ("eager", "tiled")]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert seen == {"eager": ({"eager"}, "sdpa"), "tiled": ({"tiled"}, "sdpa")}


def test_tasks_do_not_disturb_each_other():
    async def work(name):
        with attention_backend(name):
            out = []
            for _ in range(3):
                out.append(chosen())
                await asyncio.sleep(0)
            return out

    async def both():
        return await asyncio.gather(work("eager"), work("tiled"))

    assert asyncio.run(both()) == [["eager"] * 3, ["tiled"] * 3]


def test_overlapping_tasks_leave_nothing_behind_for_compiled_code():
    """The block of one task ends while another's is still open: afterwards compiled code asks for nothing again."""

    async def work(name, turns):
        with attention_backend(name):
            for _ in range(turns):
                await asyncio.sleep(0)

    async def both():
        await asyncio.gather(work("eager", 1), work("tiled", 3))

    asyncio.run(both())
    seen = []

    def note(graph, inputs):
        seen.append(graph.print_readable(print_output=False))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: attention(x, x, x), backend=note, fullgraph=True)(q())
    assert "scaled_dot_product_attention" in seen[0]


def test_calls_with_other_features_do_not_share_the_state_of_a_bound_mask():
    """A causal call needs no mask tensor, the same with a bias does: sdpa:math refuses is_causal beside one."""
    from headway.attention import reference_attention

    x, bias = q(), torch.randn(6, 6)
    for first, second in ((None, bias), (bias, None)):
        bound = masks.causal().bind(6, 6)
        for b in (first, second):
            got = attention(x, x, x, mask=bound, bias=b, backend="sdpa:math").double()
            torch.testing.assert_close(
                got, reference_attention(x, x, x, mask=masks.causal(), bias=b).output, atol=1e-5, rtol=1e-5
            )
    bound = masks.documents.from_cu_seqlens(torch.tensor([0, 6])).bind(6, 6)
    attention(x, x, x, mask=bound, backend="tiled")
    attention(x, x, x, mask=bound, backend="tiled", softcap=2.0)
    tiles = [state.plan for state in bound.memo.values() if type(state).__name__ == "TileState"]
    assert len(tiles) == 2 and tiles[0] is not tiles[1]  # large tiles for PyTorch's kernel, small ones where scores are held


class Layer(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx, self.attention_backend = layer_idx, None

    def forward(self, x):
        return attention(x, x, x, layer_backend=self.attention_backend)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(i) for i in range(3))
        self.__dict__["attention"] = AttentionSwitch(self)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def used(model):
    with record_plans() as plans:
        model(q())
    return [p.backend.name for p, _ in plans]


def test_a_live_model_switches_as_a_whole_and_by_layer():
    model = Model()
    assert used(model) == ["sdpa"] * 3
    model.attention.use("tiled")
    model.attention.use("eager", layers=[1])
    assert used(model) == ["tiled", "eager", "tiled"] and model.attention.current() == {0: "tiled", 1: "eager", 2: "tiled"}
    for wrong in (lambda: model.attention.use("nothing"), lambda: model.attention.use("eager", layers=[7])):
        with pytest.raises(ValueError):
            wrong()
    assert used(model) == ["tiled", "eager", "tiled"]
    text = model.attention.explain({"x": q()})
    assert "calls 0, 2" in text and "calls 1" in text
    model.attention.use("auto")
    assert used(model) == ["sdpa"] * 3


def test_a_backend_of_ones_own():
    class Zero(Backend):
        name = "zero"
        features = Features(backward=False)

        def run(self, q, k, v, state, call, spec):
            from headway.attention import AttentionResult

            return AttentionResult(torch.zeros_like(q))

    register_backend(Zero())
    try:
        with pytest.raises(ValueError, match="exists already"):
            register_backend(Zero())
        assert (attention(q(), q(), q(), backend="zero") == 0).all()
        x = q(requires_grad=True)
        with pytest.raises(BackendRefused, match="backward"):
            attention(x, x, x, backend="zero")
    finally:
        del _backends["zero"]
