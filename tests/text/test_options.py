"""Options of a tokenizer are honoured or refused; calls from several threads do not disturb each other."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
import torch

from headway.errors import TokenizerError
from headway.text.tokenizer import Tokenizer


@pytest.fixture
def tokenizer():
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(50)} | {"[CLS]": 50, "?": 51}, "?"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    core.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 50)])
    return Tokenizer(core)


TEXT = " ".join(f"w{i}" for i in range(50))


@pytest.mark.parametrize("option", [{"max_length": 4}, {"overflow": True}, {"stride": 2}])
def test_nothing_is_cut_or_ignored_in_silence(tokenizer, option):
    with pytest.raises(TokenizerError, match="need truncation=.*longest_first"):
        tokenizer.encode([TEXT], **option)


@pytest.mark.parametrize("length", [1, 4])
def test_without_special_tokens_all_of_max_length_is_text(tokenizer, length):
    options = {"truncation": "longest_first", "max_length": length, "add_special_tokens": False}
    assert tokenizer.encode([TEXT], **options)[0].input_ids == list(range(length))


def test_what_makes_no_sense_is_refused(tokenizer):
    with pytest.raises(TokenizerError, match="list of words"):
        tokenizer.encode(["w1 w2"], words=True)
    with pytest.raises(TokenizerError, match="stride"):
        tokenizer.encode([TEXT], truncation="only_first", max_length=5, stride=-1)
    for ids in ([-1], torch.tensor([[1, 2]]), ["w1"], [2**40]):
        with pytest.raises(TokenizerError, match="one row of token ids"):
            tokenizer.decode(ids)


def test_threads_with_different_lengths(tokenizer):
    def encode(n: int) -> list[int]:
        limit = n % 5 * 8  # 0: the whole text
        options = {"truncation": "longest_first", "max_length": limit} if limit else {}
        return [len(e.input_ids) for e in tokenizer.encode([TEXT] * 40, **options)] + [limit or 51]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(encode, range(400)):
            assert set(found) == {found[-1]}


def test_a_tokenizer_travels_to_other_processes(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode([TEXT]) == tokenizer.encode([TEXT]) and again.padding_side == tokenizer.padding_side
