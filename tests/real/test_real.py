"""Real pretrained weights against transformers and sentence-transformers, with every backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

import headway
from headway.attention import BackendRefused
from headway.encoding import Encoder
from headway.generation import generate

pytestmark = pytest.mark.real

TEXT = "The lighthouse keeper wrote the number of ships into his book, and"
SENTENCES = [
    "A man is eating food.",
    "A girl plays guitar in the park.",
    "",
    "word " * 400,
    "Markets fell.",
    "日本語 and naïve",
]


@pytest.fixture(scope="module")
def smollm(weights):
    folder = weights / "smollm2-135m"
    theirs = hf.AutoModelForCausalLM.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name, dtype=torch.float32)
    return theirs.eval(), headway.load(folder), headway.load_tokenizer(folder)


def test_smollm2_logits_equal_transformers(smollm):
    theirs, ours, tokenizer = smollm
    ids = torch.tensor([tokenizer.encode([TEXT])[0].input_ids])
    with torch.no_grad():
        want = theirs(ids).logits
        for backend in ("eager", "sdpa", "tiled"):
            ours.attention.use(backend)
            torch.testing.assert_close(ours(ids).logits, want, atol=5e-4, rtol=1e-4)
    ours.attention.use("auto")


def test_smollm2_greedy_text_is_identical_over_64_tokens_with_every_backend(smollm):
    theirs, ours, tokenizer = smollm
    ids = tokenizer.encode([TEXT])[0].input_ids
    want = theirs.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False)[0, len(ids) :].tolist()
    for backend in ("eager", "sdpa", "sdpa:math", "tiled"):
        ours.attention.use(backend)
        assert generate(ours, [ids], max_new_tokens=64).tokens[0] == want, backend
    ours.attention.use("auto")


@pytest.mark.slow
def test_smollm2_greedy_text_with_flex(smollm):
    _, ours, tokenizer = smollm
    ids = tokenizer.encode([TEXT])[0].input_ids
    want = generate(ours, [ids], max_new_tokens=24).tokens
    ours.attention.use("flex")
    try:
        assert generate(ours, [ids], max_new_tokens=24).tokens == want
    finally:
        ours.attention.use("auto")


def test_minilm_embeddings_equal_sentence_transformers(weights):
    from sentence_transformers import SentenceTransformer

    want = SentenceTransformer(str(weights / "minilm"), device="cpu").encode(SENTENCES)
    encoder = Encoder.load(weights / "minilm")
    for backend in ("auto", "eager", "sdpa", "tiled"):
        encoder.model.attention.use(backend)
        assert float(np.abs(encoder(SENTENCES) - want).max()) < 1e-5, backend


@pytest.mark.slow
def test_gemma3_equals_transformers_with_every_backend(weights):
    folder = weights / "gemma3-270m"
    theirs = hf.AutoModelForCausalLM.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name, dtype=torch.float32)
    ours, tokenizer = headway.load(folder), headway.load_tokenizer(folder)
    ids = torch.tensor([tokenizer.encode([TEXT])[0].input_ids])
    with torch.no_grad():
        want = theirs.eval()(ids).logits
    for backend in ("eager", "sdpa", "tiled"):
        ours.attention.use(backend)
        try:
            with torch.no_grad():
                torch.testing.assert_close(ours(ids).logits, want, atol=2e-3, rtol=1e-3)
        except BackendRefused as refused:
            raise AssertionError(refused) from refused
    text = tokenizer.decode(generate(ours, [ids[0].tolist()], max_new_tokens=20).tokens[0])
    assert len(set(text.split())) > 4, text
