"""Every family and task against Hugging Face transformers with the same random weights."""

from __future__ import annotations

import pytest
import torch

from headway.attention import BackendRefused
from headway.errors import InputError
from headway.packing import Packed
from tests.models.families import FAMILIES, build, pairs

SIDES = {"none": [(0, 12)] * 3, "right": [(0, 6), (0, 11), (0, 12)], "left": [(5, 12), (1, 12), (0, 12)]}
PER_TOKEN = ("causal-lm", "masked-lm", "token-classification")
TABLES = {
    "gpt2": "wte.weight",
    "bert": "embeddings.word_embeddings.weight",
    "modernbert": "embeddings.tok_embeddings.weight",
}
DECODERS = ("llama", "gemma", "gemma2", "gemma3", "phi3", "glm", "gpt2")
# transformers pools the first column, padding or not; we pool the first real token
POOLS_COLUMN = {("bert", "sequence-classification", "left"), ("modernbert", "sequence-classification", "left"),
                ("bert", "base", "left")}  # fmt: skip


def batch(side: str):
    ids = torch.randint(3, 97, (3, 12), generator=torch.Generator().manual_seed(1))
    real = torch.zeros(3, 12, dtype=torch.long)
    for row, (a, b) in enumerate(SIDES[side]):
        real[row, a:b] = 1
    return ids.masked_fill(real == 0, 0), real


def targets(task: str, real, labels: int):
    g = torch.Generator().manual_seed(2)
    if task in PER_TOKEN:
        found = torch.randint(0, labels, (3, 12), generator=g).masked_fill(real == 0, -100)
        if task == "causal-lm":  # transformers lets the last padding token on the left predict the first word
            found[torch.arange(3), real.argmax(1)] = -100
        return {"labels": found}
    if task == "sequence-classification":
        return {"labels": torch.randint(0, labels, (3,), generator=g)}
    return {}


def differ(ours, theirs, real):
    ours, theirs = ours.detach().double(), theirs.detach().double()
    keep = real.bool() if ours.shape[:2] == real.shape else ...
    return float((ours - theirs)[keep].abs().max() / theirs[keep].abs().max().clamp(min=1))


# transformers scales a batch by its longest row, we each row by its own length: compared row by row below
ROWWISE = "phi3-longrope"


@pytest.mark.parametrize("side", SIDES)
def test_length_dependent_rope_scaling_goes_by_each_rows_own_length(side):
    theirs, ours = build(ROWWISE, "base")
    ids, real = batch(side)
    got = ours(input_ids=ids, attention_mask=real).last_hidden_state
    for row in range(3):
        alone = ids[row : row + 1, real[row] == 1]
        want = theirs(input_ids=alone).last_hidden_state[0]
        torch.testing.assert_close(got[row][real[row] == 1], want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name, task", [p for p in pairs() if p[0] != ROWWISE])
def test_outputs_losses_and_gradients_equal_transformers(name, task, side):
    theirs, ours = build(name, task)
    ids, real = batch(side)
    extra = targets(task, real, 97 if task in ("causal-lm", "masked-lm") else 3)
    positions = (real.cumsum(1) - 1).clamp(min=0)
    want = theirs(input_ids=ids, attention_mask=real, position_ids=positions, output_hidden_states=True, **extra)
    got = ours(input_ids=ids, attention_mask=None if side == "none" else real, output_hidden_states=True, **extra)
    column = (name.split("-")[0], task, side) in POOLS_COLUMN and name != "modernbert-mean"
    for field in ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits", "loss"):
        a, b = getattr(got, field, None), getattr(want, field, None)
        if column and field in ("logits", "loss", "pooler_output"):
            continue
        if b is not None and (field != "pooler_output" or a is not None):
            assert differ(a, b, real) < 2e-5, field
    assert len(got.hidden_states) == len(want.hidden_states)
    for a, b in zip(got.hidden_states, want.hidden_states):
        assert differ(a, b, real) < 2e-5
    if got.__dict__.get("loss") is None or column:
        return
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert mine.keys() == other.keys()
    grads = [torch.autograd.grad(x.loss, list(p.values()), allow_unused=True) for x, p in ((got, mine), (want, other))]
    for parameter, a, b in zip(mine, *grads):
        assert (a is None) == (b is None), parameter
        if a is not None:
            assert float((a - b).abs().max()) < 1e-4 * max(1.0, float(b.abs().max())), parameter


@pytest.mark.parametrize("backend", ["eager", "sdpa", "sdpa:math", "tiled"])
@pytest.mark.parametrize("name", FAMILIES)
def test_backends_agree_and_switch_on_a_live_model(name, backend):
    _, ours = build(name, "base")
    ids, real = batch("left")
    ours.attention.use("eager")
    want = ours(input_ids=ids, attention_mask=real).last_hidden_state
    ours.attention.use(backend)
    try:
        got = ours(input_ids=ids, attention_mask=real).last_hidden_state
    except BackendRefused:
        assert name == "gemma2" and backend.startswith("sdpa")  # the soft cap
        return
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    assert (got[real == 0] == 0).all()
    grads = []
    for choice in ("eager", backend):
        ours.attention.use(choice)
        out = ours(input_ids=ids, attention_mask=real).last_hidden_state
        grads.append(torch.autograd.grad(out.sin().sum(), list(ours.parameters()), allow_unused=True))
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_padded_embedded_and_alone_are_the_same(name):
    _, ours = build(name, "base")
    ids, real = batch("left")
    rows = [ids[i][real[i] == 1].tolist() for i in range(3)]
    padded = ours(input_ids=ids, attention_mask=real).last_hidden_state[real == 1]
    packed = ours(packed=Packed.from_lists(rows)).last_hidden_state[0]
    alone = torch.cat([ours(input_ids=torch.tensor([r])).last_hidden_state[0] for r in rows])
    table = ours.get_parameter(TABLES.get(name.split("-")[0], "embed_tokens.weight"))
    embedded = ours(inputs_embeds=table[ids], attention_mask=real).last_hidden_state[real == 1]
    for other in (packed, alone, embedded):
        torch.testing.assert_close(padded, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n.split("-")[0] in DECODERS])
def test_a_cache_gives_what_the_whole_sequence_gives(name):
    if name == "phi3-longrope":
        return  # changes frequencies as it grows; tests/generation covers it
    _, ours = build(name, "causal-lm")
    ids, real = batch("left")
    more = torch.randint(3, 97, (3, 9))
    whole = ours(input_ids=torch.cat([ids, more], 1), attention_mask=torch.cat([real, torch.ones_like(more)], 1)).logits
    with torch.no_grad():
        first = ours(input_ids=ids, attention_mask=real, use_cache=True)
        cache = first.past_key_values
        steps = [ours(input_ids=more[:, i : i + 1], past_key_values=cache).logits for i in range(3)]
        rest = ours(input_ids=more[:, 3:], past_key_values=cache).logits  # a chunk on what is cached
    torch.testing.assert_close(torch.cat([*steps, rest], 1), whole[:, 12:], atol=2e-5, rtol=1e-4)
    assert cache.lengths.tolist() == [16, 20, 21]


@pytest.mark.parametrize("name", ["llama", "bert", "modernbert"])
def test_attention_weights_equal_transformers_in_the_callers_layout(name):
    theirs, ours = build(name, "base")
    ids, real = batch("left")
    positions = (real.cumsum(1) - 1).clamp(min=0)
    want = theirs(input_ids=ids, attention_mask=real, position_ids=positions, output_attentions=True).attentions
    got = ours(input_ids=ids, attention_mask=real, output_attentions=True).attentions
    seen = real.bool()[:, None, :, None]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a * seen, b * seen, atol=1e-5, rtol=1e-4)


def test_bad_input_is_refused_clearly():
    _, ours = build("llama", "base")
    ids = torch.ones(2, 5, dtype=torch.long)
    for call, says in (
        ({"input_ids": ids + 96}, "token ids must be in"),
        ({"input_ids": -ids}, "token ids must be in"),
        ({"input_ids": ids.float()}, "integers"),
        ({"input_ids": ids[0]}, r"\(B, L\)"),
        ({}, "exactly one"),
        ({"input_ids": ids, "attention_mask": torch.ones(2, 4)}, "attention_mask must have shape"),
        ({"input_ids": ids, "attention_mask": torch.ones(2, 1, 5, 5)}, "headway.attention"),
        ({"input_ids": ids, "position_ids": torch.ones(2, 2, 5).long()}, "position_ids of shape"),
        ({"input_ids": ids, "packed": Packed.from_lists([[1]])}, "not both"),
    ):
        with pytest.raises(InputError, match=says):
            ours(**call)


def test_position_ids_of_one_and_two_dimensions():
    theirs, ours = build("llama", "base")
    ids = torch.randint(3, 97, (2, 5))
    offset = torch.arange(5) + 7  # no zero in it
    want = theirs(input_ids=ids, position_ids=offset[None].expand(2, 5)).last_hidden_state
    for given in (offset, offset[None], offset[None].expand(2, 5)):
        torch.testing.assert_close(ours(input_ids=ids, position_ids=given).last_hidden_state, want, atol=1e-5, rtol=1e-5)


def test_ignored_labels_give_a_loss_of_zero_with_usable_gradients():
    for name, task in (("llama", "causal-lm"), ("bert", "masked-lm"), ("modernbert", "token-classification")):
        _, ours = build(name, task)
        out = ours(input_ids=torch.ones(2, 5, dtype=torch.long), labels=torch.full((2, 5), -100))
        assert float(out.loss) == 0.0
        out.loss.backward()
        assert all(p.grad is None or (p.grad == 0).all() for p in ours.parameters())


def test_accumulated_steps_equal_one_large_batch():
    _, ours = build("llama", "causal-lm")
    ids, real = batch("right")
    labels = ids.masked_fill(real == 0, -100)
    count = (labels[:, 1:] != -100).sum()
    whole = ours(input_ids=ids, attention_mask=real, labels=labels).loss
    parts = [
        ours(input_ids=ids[i : i + 1], attention_mask=real[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=count).loss
        for i in range(3)
    ]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize(
    "kind, labels", [("regression", torch.tensor([0.5, 1.0])), ("multi_label_classification", torch.ones(2, 3))]
)
def test_sequence_losses_equal_transformers(kind, labels):
    import transformers as hf

    from headway.models.registry import resolve
    from tests.models.families import SMALL

    config = hf.BertConfig(**SMALL, num_labels=1 if kind == "regression" else 3, problem_type=kind)
    theirs = hf.BertForSequenceClassification(config).eval()
    config_class, model = resolve(config.to_dict(), "sequence-classification")
    ours = model(config_class.from_dict(config.to_dict())).eval()
    ours.load_state_dict(theirs.state_dict())
    ids = torch.randint(3, 97, (2, 5))
    torch.testing.assert_close(ours(input_ids=ids, labels=labels).loss, theirs(input_ids=ids, labels=labels).loss)


def test_multiple_choice_equals_transformers():
    import transformers as hf

    from headway.models.registry import resolve
    from tests.models.families import MODERN, SMALL

    ids = torch.randint(3, 97, (2, 3, 6))
    for theirs in (
        hf.BertForMultipleChoice(hf.BertConfig(**SMALL)),
        hf.ModernBertForMultipleChoice(hf.ModernBertConfig(**SMALL, **MODERN)),
    ):
        theirs.eval()
        raw = theirs.config.to_dict()
        config_class, model = resolve(raw, "multiple-choice")
        ours = model(config_class.from_dict(raw)).eval()
        ours.load_state_dict(theirs.state_dict())
        labels = torch.tensor([1, 2])
        got, want = ours(input_ids=ids, labels=labels), theirs(input_ids=ids, labels=labels)
        torch.testing.assert_close(got.logits, want.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(got.loss, want.loss)


def test_sparse_prediction_gives_the_same_loss_from_fewer_logits():
    _, ours = build("modernbert", "masked-lm")
    ids, real = batch("right")
    labels = ids.masked_fill((torch.rand(3, 12) > 0.4) | (real == 0), -100)
    dense = ours(input_ids=ids, attention_mask=real, labels=labels)
    ours.config.sparse_prediction = True
    sparse = ours(input_ids=ids, attention_mask=real, labels=labels)
    torch.testing.assert_close(sparse.loss, dense.loss)
    torch.testing.assert_close(sparse.logits, dense.logits[labels != -100])


def test_the_compiled_mlp_of_modernbert_changes_nothing():
    _, ours = build("modernbert", "masked-lm")
    ids, _ = batch("none")
    want = ours(input_ids=ids).logits
    for module in ours.modules():
        if hasattr(module, "_compiled"):
            module._compiled = True
    torch.testing.assert_close(ours(input_ids=ids).logits, want, atol=1e-5, rtol=1e-5)


def test_generation_past_a_window_equals_the_whole_sequence():
    """A prompt longer than the window, then steps from the cache (field: single prefill longer than window)."""
    _, ours = build("gemma3", "causal-lm")
    ids = torch.randint(3, 97, (1, 20))
    whole = ours(input_ids=ids).logits
    with torch.no_grad():
        out = ours(input_ids=ids[:, :15], use_cache=True)
        rest = [ours(input_ids=ids[:, i : i + 1], past_key_values=out.past_key_values).logits for i in range(15, 20)]
    torch.testing.assert_close(torch.cat([out.logits, *rest], 1), whole, atol=1e-5, rtol=1e-5)
