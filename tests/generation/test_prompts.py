"""Prompts as a model sees them: one BOS token, whoever wrote it."""

from __future__ import annotations

import pytest
import tokenizers

from headway.generation import generate_text, stream_text
from headway.models.llama.configuration_llama import LlamaConfig
from headway.models.llama.modeling_llama import LlamaForCausalLM
from headway.text.tokenizer import Tokenizer

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def tokenizer():
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1, "b": 2, "?": 3}, "?"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.add_special_tokens(["<s>"])
    core.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(core, {"bos_token": "<s>"}, TEMPLATE)


@pytest.fixture
def model():
    config = LlamaConfig(vocab_size=4, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def seen(model):
    """The tokens of every pass through the model."""
    rows = []

    model.model.embed_tokens.register_forward_pre_hook(lambda _, args: rows.append(args[0].flatten().tolist()))
    return rows


def test_a_chat_that_writes_its_bos_gets_no_second_one(model, tokenizer, seen):
    chat = tokenizer.chat([{"role": "user", "content": "a b"}])
    assert chat == "<s>a b"
    generate_text(model, tokenizer, [chat], max_new_tokens=1)
    list(stream_text(model, tokenizer, chat, max_new_tokens=1))
    list(stream_text(model, tokenizer, "a b", max_new_tokens=1))
    list(stream_text(model, tokenizer, "a b", max_new_tokens=1, add_special_tokens=False))
    assert seen == [[0, 1, 2]] * 3 + [[1, 2]]
