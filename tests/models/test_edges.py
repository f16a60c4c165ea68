"""Rows without a token, inputs that do not fit together, and heads inside a compiled graph."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from headway.errors import InputError
from headway.packing import Packed
from tests.models.families import build

IDS = torch.randint(3, 97, (3, 6), generator=torch.Generator().manual_seed(3))


def output(model, **call):
    out = model(**call)
    return next(x for x in (getattr(out, n, None) for n in ("logits", "start_logits", "last_hidden_state")) if x is not None)


@pytest.mark.parametrize("empty", [0, 1, 2])
@pytest.mark.parametrize(
    "task", ["base", "sequence-classification", "token-classification", "question-answering", "causal-lm", "masked-lm"]
)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "modernbert"])
def test_a_row_of_padding_changes_no_other_row_and_takes_nothing_from_them(name, task, empty):
    if task == ("masked-lm" if name in ("llama", "gpt2") else "causal-lm"):
        return
    _, ours = build(name, task)
    real = torch.ones_like(IDS)
    real[empty] = 0
    got = output(ours, input_ids=IDS, attention_mask=real)
    others = [i for i in range(3) if i != empty]
    torch.testing.assert_close(got[others], output(ours, input_ids=IDS)[others], atol=1e-5, rtol=1e-5)
    changed = IDS.clone()
    changed[others] = IDS[others].flip(0, 1)
    assert torch.equal(got[empty], output(ours, input_ids=changed, attention_mask=real)[empty])
    assert torch.isfinite(output(ours, input_ids=IDS, attention_mask=torch.zeros_like(IDS))).all()


def test_no_rows_and_no_columns():
    for name, task in (("llama", "causal-lm"), ("bert", "sequence-classification"), ("modernbert", "token-classification")):
        _, ours = build(name, task)
        assert output(ours, input_ids=IDS[:0]).shape[0] == 0
        assert output(ours, input_ids=IDS[:, :0]).shape[0] == 3


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_positions_beyond_the_learned_ones_are_refused(name):
    _, ours = build(name, "base")
    long = torch.full((1, 65), 5)
    for call in (
        {"input_ids": long},
        {"packed": Packed.from_lists(long.tolist())},
        {"input_ids": IDS, "position_ids": torch.arange(6) + 59},
        {"input_ids": IDS, "position_ids": torch.arange(6) - 1},
    ):
        with pytest.raises(InputError, match=r"positions must be in \[0, 64\)"):
            ours(**call)
    assert ours(input_ids=long[:, :64]).last_hidden_state.shape == (1, 64, 32)


def test_steps_from_a_cache_beyond_the_learned_positions_are_refused():
    _, ours = build("gpt2", "causal-lm")
    cache = ours(input_ids=torch.full((1, 64), 5), use_cache=True).past_key_values
    with pytest.raises(InputError, match="found 64"):
        ours(input_ids=IDS[:1, :1], past_key_values=cache)


def test_inputs_and_labels_that_do_not_fit_are_refused():
    _, bert = build("bert", "masked-lm")
    for call, says in (
        ({"token_type_ids": torch.full_like(IDS, 2)}, r"token_type_ids must be in \[0, 2\)"),
        ({"token_type_ids": IDS[:, :3]}, r"begin with \(3, 6\)"),
        ({"labels": IDS[:, :3]}, r"begin with \(3, 6\)"),
        ({"labels": IDS + 97}, r"labels must be in \[0, 97\)"),
    ):
        with pytest.raises(InputError, match=says):
            bert(input_ids=IDS, **call)


LOSSES = {
    "llama": ["causal-lm", "sequence-classification", "token-classification"],
    "bert": ["masked-lm", "sequence-classification", "token-classification"],
}


@pytest.mark.parametrize("name, task", [(n, t) for n, tasks in LOSSES.items() for t in tasks])
def test_heads_and_losses_are_one_graph_over_lengths(name, task):
    _, ours = build(name, task)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(ours, backend=counter, fullgraph=True, dynamic=True)
    for batch, length in ((2, 7), (3, 12), (4, 9), (2, 21)):
        ids = torch.randint(3, 97, (batch, length))
        real = torch.arange(length) >= torch.arange(batch)[:, None]
        labels = torch.randint(0, 3, (batch,) if task == "sequence-classification" else ids.shape)  # also on padding
        got, want = (m(input_ids=ids, attention_mask=real, labels=labels) for m in (compiled, ours))
        torch.testing.assert_close(got.loss, want.loss, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(got.logits, want.logits, atol=1e-5, rtol=1e-4)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["llama", "bert", "modernbert", "gemma2", "glm"])
def test_autocast_trains_and_gives_one_result_with_and_without_gradients(name):
    _, ours = build(name, "base")
    exact = ours(input_ids=IDS).last_hidden_state
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained = ours(input_ids=IDS).last_hidden_state
        with torch.no_grad():
            plain = ours(input_ids=IDS).last_hidden_state
    assert trained.dtype == plain.dtype
    assert all(float((x.detach().float() - exact.detach()).abs().max()) < 0.1 for x in (trained, plain))
    trained.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in ours.parameters() if p.grad is not None)


def test_copies_choose_their_backend_for_themselves_and_models_can_be_pickled():
    _, ours = build("llama", "causal-lm")
    ours.attention.use("eager", layers=[1])
    twin = copy.deepcopy(ours)
    twin.attention.use("tiled")
    assert ours.attention.current() == {0: "auto", 1: "eager", 2: "auto"}
    assert set(twin.attention.current().values()) == {"tiled"}
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    back = torch.load(file, weights_only=False)
    assert back.attention.current() == ours.attention.current()
    assert torch.equal(back(input_ids=IDS).logits, ours(input_ids=IDS).logits)
