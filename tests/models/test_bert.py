"""What is BERT's own: layouts of its checkpoints, options it does not have, spans."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

import headway
from headway.errors import CheckpointError
from headway.models.bert.configuration_bert import BertConfig
from headway.models.registry import resolve
from tests.models.families import SMALL, build

IDS = torch.randint(3, 97, (2, 6), generator=torch.Generator().manual_seed(4))


def test_a_pretraining_checkpoint_serves_its_parts(tmp_path):
    torch.manual_seed(0)
    theirs = hf.BertForPreTraining(hf.BertConfig(**SMALL)).eval()
    theirs.save_pretrained(tmp_path)
    want = theirs(input_ids=IDS).prediction_logits
    torch.testing.assert_close(headway.load(tmp_path, task="masked-lm")(input_ids=IDS).logits, want, atol=1e-6, rtol=1e-5)
    want = theirs.bert(input_ids=IDS).pooler_output
    torch.testing.assert_close(headway.load(tmp_path, task="base")(input_ids=IDS).pooler_output, want, atol=1e-6, rtol=1e-5)


def test_an_untied_decoder_stays_one_of_its_own():
    theirs = hf.BertForMaskedLM(hf.BertConfig(**SMALL, tie_word_embeddings=False)).eval()
    config, model = resolve(theirs.config.to_dict(), "masked-lm")
    ours = model(config.from_dict(theirs.config.to_dict())).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    for m in (ours, theirs):
        m(input_ids=IDS, labels=IDS).loss.backward()
    gradients = dict(theirs.named_parameters())
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name].grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "name, value", [("is_decoder", True), ("add_cross_attention", True), ("position_embedding_type", "relative_key")]
)
def test_options_that_would_change_the_numbers_are_refused(name, value):
    with pytest.raises(CheckpointError, match=name):
        BertConfig.from_dict({name: value})


def test_the_same_options_switched_off_are_kept():
    off = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
    assert off.items() <= BertConfig.from_dict(off).to_dict().items()


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_losses_of_spans_and_their_gradients_equal_transformers(name):
    theirs, ours = build(name, "question-answering")
    ids = torch.randint(3, 97, (3, 12), generator=torch.Generator().manual_seed(5))
    at = {"start_positions": torch.tensor([0, 3, 50]), "end_positions": torch.tensor([2, 11, 4])}  # 50 is outside
    got, want = (m(input_ids=ids, **at).loss for m in (ours, theirs))
    torch.testing.assert_close(got, want)
    got.backward()
    want.backward()
    gradients = dict(theirs.named_parameters())
    for n, p in ours.named_parameters():
        if gradients[n].grad is not None:
            torch.testing.assert_close(p.grad, gradients[n].grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_no_answer_falls_on_padding(name):
    _, ours = build(name, "question-answering")
    real = torch.ones_like(IDS)
    real[0, 3:] = 0
    out = ours(input_ids=IDS, attention_mask=real)
    for logits in (out.start_logits, out.end_logits):
        assert (logits.softmax(-1)[0, 3:] == 0).all() and torch.isfinite(logits).all()
