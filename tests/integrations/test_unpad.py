"""Unpadded encoders give the padded encoder's numbers at real tokens."""

from __future__ import annotations

import pytest
import torch
import transformers as tf

from headway.integrations.transformers import unpad
from tests.integrations import tiny

DISTIL = {"vocab_size": 99, "dim": 64, "hidden_dim": 64, "n_heads": 4, "n_layers": 2}
MODELS = {
    "bert": lambda: tiny.bert(),
    "roberta": lambda: tiny.build(tf.RobertaModel, tf.RobertaConfig(**tiny.SMALL)),
    "xlm-roberta": lambda: tiny.build(tf.XLMRobertaModel, tf.XLMRobertaConfig(**tiny.SMALL)),
    "distilbert": lambda: tiny.build(tf.DistilBertModel, tf.DistilBertConfig(**DISTIL)),
    "mpnet": lambda: tiny.build(tf.MPNetModel, tf.MPNetConfig(**tiny.SMALL)),
    "modernbert": lambda: tiny.modernbert(),
    "electra": lambda: tiny.build(tf.ElectraModel, tf.ElectraConfig(embedding_size=64, **tiny.SMALL)),
}


def holes(length: int = 13):
    ids, mask = tiny.batch("both", length)
    mask[0, 4:6] = 0
    mask[2, 1] = 0
    return ids * mask, mask


@pytest.mark.parametrize("kind", ["left", "right", "both", "holes", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(name, kind):
    ids, mask = holes() if kind == "holes" else tiny.batch(kind)
    model = MODELS[name]()
    for p in model.parameters():
        if p.dim() > 1:
            p.data.add_(torch.randn_like(p) * 0.1)

    def run():
        model.zero_grad()
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        real = out.last_hidden_state[mask.bool()]
        weight = torch.linspace(-1, 1, real.numel()).view_as(real)
        (real * weight).sum().backward()
        states = [h[mask.bool()] for h in out.hidden_states]
        # a pooler reads the first column, which is padding in a left-padded row
        pooled = out.get("pooler_output")[mask[:, 0].bool()] if out.get("pooler_output") is not None else torch.zeros(1)
        return [real, pooled, *states], [p.grad.clone() for p in model.parameters() if p.grad is not None]

    want, grads = run()
    assert unpad(model) is model
    got, mine = run()
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, atol=5e-6, rtol=5e-5)
    scale = max(float(g.abs().max()) for g in grads)
    for g, w in zip(mine, grads, strict=True):
        torch.testing.assert_close(g, w, atol=2e-5 * scale, rtol=1e-3)


def test_no_layer_sees_padding():
    ids, mask = tiny.batch("right")
    model = unpad(tiny.bert())
    seen = []
    model.encoder.layer[0].register_forward_pre_hook(lambda m, args: seen.append(args[0].shape))
    out = model(input_ids=ids, attention_mask=mask).last_hidden_state
    assert seen == [(1, int(mask.sum()), 64)]
    assert float(out[~mask.bool()].detach().abs().max()) == 0.0


@pytest.mark.parametrize("head", ["MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_heads(head):
    ids, mask = tiny.batch("right")
    model = tiny.build(getattr(tf, f"BertFor{head}"), tf.BertConfig(**tiny.SMALL))
    want = model(ids, attention_mask=mask)
    got = unpad(model)(ids, attention_mask=mask)
    for key in want:
        per_token = want[key].shape[:2] == mask.shape
        a, b = (want[key][mask.bool()], got[key][mask.bool()]) if per_token else (want[key], got[key])
        torch.testing.assert_close(b, a, atol=5e-6, rtol=5e-5)


def test_embeddings_tuples_and_token_types():
    ids, mask = tiny.batch("both")
    types = (torch.arange(13) > 6).long().expand_as(ids)
    model = tiny.bert()
    embeds = model.embeddings.word_embeddings(ids).detach()
    want = model(inputs_embeds=embeds, attention_mask=mask, token_type_ids=types).last_hidden_state
    got = unpad(unpad(model))(inputs_embeds=embeds, attention_mask=mask, token_type_ids=types, return_dict=False)
    assert isinstance(got, tuple)
    torch.testing.assert_close(got[0][mask.bool()], want[mask.bool()], atol=5e-6, rtol=5e-5)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_one_graph_for_all_lengths(name):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, plain, count = unpad(MODELS[name]()), MODELS[name](), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    with torch.no_grad():
        for length in (13, 18, 29):
            ids, mask = holes(length)
            got = compiled(input_ids=ids, attention_mask=mask).last_hidden_state
            want = plain(input_ids=ids, attention_mask=mask).last_hidden_state
            torch.testing.assert_close(got[mask.bool()], want[mask.bool()], atol=5e-6, rtol=5e-5)
    assert count.frame_count == 1


def test_refusals():
    ids, mask = tiny.batch("right")
    with pytest.raises(ValueError, match="does not know 'llama'"):
        unpad(tiny.llama())
    with pytest.raises(ValueError, match="is a decoder"):
        unpad(tiny.bert(is_decoder=True))
    model = unpad(tiny.bert())
    with pytest.raises(ValueError, match="output_attentions"):
        model(input_ids=ids, attention_mask=mask, output_attentions=True)
    with pytest.raises(ValueError, match="no packed form"):
        model(input_ids=ids, attention_mask=mask[:, None, None, :].expand(-1, 1, 13, 13))
