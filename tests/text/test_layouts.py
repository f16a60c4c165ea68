"""Older layouts of tokenizer files, against transformers; and files that are not what they should be."""

from __future__ import annotations

import json

import pytest
import tokenizers
import transformers

from headway import load_tokenizer
from headway.errors import HeadwayError

TEXTS = ["ab a<|endoftext|>b", " ab", "é\n", "a<extra>b", "<|endoftext|><|endoftext|>"]


@pytest.fixture
def gpt2(tmp_path):
    """vocab.json and merges.txt, as GPT-2 was published."""
    vocab = {c: i for i, c in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {"<|endoftext|>": 256, "Ġa": 257, "ab": 258}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ a\na b\n")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_positions": 32}')
    return tmp_path


@pytest.mark.parametrize("config", [{}, {"add_prefix_space": True}])
def test_gpt2_files_equal_transformers(gpt2, config):
    (gpt2 / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **config}))
    ours, theirs = load_tokenizer(gpt2), transformers.GPT2Tokenizer.from_pretrained(gpt2)
    for text, e in zip(TEXTS, ours.encode(TEXTS)):
        want = theirs(text)["input_ids"]
        assert e.input_ids == want and ours.decode(want) == theirs.decode(want, skip_special_tokens=True)
    assert ours.eos_id == theirs.eos_token_id == 256 and ours.max_length == 32


def test_added_tokens_have_their_ids(gpt2):
    (gpt2 / "added_tokens.json").write_text('{"<extra>": 259}')
    ours = load_tokenizer(gpt2)
    assert ours.encode(["a<extra>b"])[0].input_ids == [ours.core.token_to_id("a"), 259, ours.core.token_to_id("b")]


def test_a_bare_wordpiece_vocabulary_has_its_special_tokens(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    ours = load_tokenizer(_with_config(tmp_path))
    assert ours.mask_id == 4 and ours.pad_id == 0
    assert ours.encode(["a [MASK] b"])[0].input_ids == [2, 5, 4, 6, 3]


def _with_config(folder):
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json", "config.json", "added_tokens.json"])
@pytest.mark.parametrize("text", ["3", "[1]", "{", "\xff"])
def test_files_that_are_no_json_object(gpt2, file, text):
    (gpt2 / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(HeadwayError, match=file):
        load_tokenizer(gpt2)


@pytest.mark.real
def test_the_named_way_of_cutting_words_is_followed(weights):
    """llama.cpp cuts `smollm` text at every digit before it looks for words, so what stands between digits is whole.

    (transformers' reader of GGUF files leaves this out, and cuts one tab off the run.)
    """
    ours = load_tokenizer(weights / "smollm2-135m")
    tabs = ours.encode(["\t\t\t"])[0].input_ids
    one = ours.encode(["1"])[0].input_ids
    assert len(tabs) == 1 and ours.encode(["1\t\t\t11"])[0].input_ids == [*one, *tabs, *one, *one]
