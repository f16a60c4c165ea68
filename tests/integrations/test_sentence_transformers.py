"""A SentenceTransformer, unpadded, gives the same vectors and gradients."""

from __future__ import annotations

import pytest
import torch
import transformers as tf

from headway.integrations.sentence_transformers import unpad
from tests.integrations import tiny

st = pytest.importorskip("sentence_transformers")
models = pytest.importorskip("sentence_transformers.models")

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "under", "tree", "and", "then", "slept", "all", "day", "long"]
TEXTS = [
    "the cat",
    "a dog ran on the mat and then slept all day long under a tree",
    "the mat",
    "",
    "cat and dog sat on the mat",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    tf.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    model = tiny.bert()
    for p in model.parameters():
        if p.dim() > 1:
            p.data.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_vectors(folder, pooling):
    transformer = models.Transformer(folder)
    pool = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode=pooling)
    model = st.SentenceTransformer(modules=[transformer, pool], device="cpu")
    want = model.encode(TEXTS, batch_size=5, convert_to_tensor=True)
    seen = []
    next(m for m in model.modules() if isinstance(m, tf.BertModel)).encoder.layer[1].register_forward_pre_hook(
        lambda m, args: seen.append(tuple(args[0].shape))
    )
    got = unpad(model).encode(TEXTS, batch_size=5, convert_to_tensor=True)
    torch.testing.assert_close(got, want, atol=5e-6, rtol=5e-5)
    assert len(seen) == 1 and seen[0] == (1, sum(len(t.split()) + 2 for t in TEXTS), 64)
    assert (want[0] - want[2]).abs().max() > 1e-3


def test_cross_encoder(folder):
    model = st.CrossEncoder(folder, num_labels=1, device="cpu")
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[4])]
    want = model.predict(pairs, convert_to_tensor=True)
    got = unpad(model).predict(pairs, convert_to_tensor=True)
    torch.testing.assert_close(got, want, atol=5e-6, rtol=5e-5)


def test_nothing_to_unpad():
    with pytest.raises(ValueError, match="holds no transformers model"):
        unpad(torch.nn.Linear(2, 2))
