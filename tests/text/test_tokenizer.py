"""Tokenizers against transformers, on the real files."""

from __future__ import annotations

import pytest
import torch
import transformers

from headway import load_tokenizer
from headway.errors import TokenizerError

pytestmark = pytest.mark.real

GGUF = {"smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3-270m": "gemma-3-270m-q4_k_m.gguf"}
# transformers takes a minute to read Gemma's vocabulary
NAMES = ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)]
TEXTS = [
    "Hello world, this is  a test 12345.", "  leading spaces\n\n\ttabs and\r\nreturns ",
    "Grüße, 你好 🤗 family: 👨‍👩‍👧 \u200d", "", " ",
    "def f(x):\n    return x**2  # 3.14\n", "don't I'LL we're '''",
    "<|im_start|>user\nHi<|im_end|>", "<start_of_turn>user\nhi<end_of_turn>",
    "▁metaspace ▁▁", "e\u0301 é ﬁ", "العربية हिन्दी ไทย", "a" * 300, "\x00\x07",
]  # fmt: skip


@pytest.fixture(scope="module")
def both(weights):
    made = {}

    def get(name):
        if name not in made:
            options = {"gguf_file": GGUF[name]} if name in GGUF else {}
            theirs = transformers.AutoTokenizer.from_pretrained(weights / name, **options)
            made[name] = load_tokenizer(weights / name), theirs
        return made[name]

    return get


@pytest.mark.parametrize("name", ["minilm", *NAMES])
def test_ids_offsets_and_decoding(both, name):
    ours, theirs = both(name)
    for text, e in zip(TEXTS, ours.encode(TEXTS)):
        want = theirs(text, return_offsets_mapping=True)
        assert e.input_ids == want["input_ids"], text
        assert e.offsets == [tuple(o) for o in want["offset_mapping"]]
        for skip in (True, False):
            assert ours.decode(e.input_ids, skip) == theirs.decode(
                e.input_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )


@pytest.mark.parametrize("name", ["minilm", *NAMES])
def test_streaming_gives_whole_characters_and_all_of_them(weights, name):
    ours = load_tokenizer(weights / name)
    for text in TEXTS:
        ids = ours.encode([text])[0].input_ids
        pieces = list(ours.stream(ids))
        assert "".join(pieces) == ours.decode(ids)
        assert not any("\ufffd" in p for p in pieces)
    assert len(list(ours.stream(ours.encode(["one two three four"])[0].input_ids))) >= 4


def test_only_the_inputs_a_model_takes(both):
    bert, theirs = both("minilm")
    a, b = ["what is it?", "why"], ["a long answer to it", "because"]
    found, want = bert(a, b), theirs(a, b, padding=True, return_tensors="pt")
    assert set(found) == {"input_ids", "attention_mask", "token_type_ids"}
    assert all(torch.equal(found[k], want[k]) for k in found)
    assert found["token_type_ids"].any()
    llama, _ = both("smollm2-135m")
    assert set(llama(["hi"])) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
@pytest.mark.parametrize("stride", [0, 2])
def test_truncation_and_overflow(both, strategy, stride):
    ours, theirs = both("minilm")
    a, b = "one two three four five six seven eight nine ten", "red green blue black white grey brown pink"
    options = {"max_length": 17, "truncation": strategy, "stride": stride}
    if strategy == "longest_first":
        found = ours.encode([a], [b], **options)
        want = theirs([a], [b], **options)
    else:
        found = ours.encode([a], [b], overflow=True, **options)
        want = theirs([a], [b], return_overflowing_tokens=True, return_offsets_mapping=True, **options)
        assert len(found) > 1 and {e.source for e in found} == {0}
        assert [e.offsets for e in found] == [[tuple(o) for o in w] for w in want["offset_mapping"]]
    assert [e.input_ids for e in found] == want["input_ids"]
    assert [e.token_type_ids for e in found] == want["token_type_ids"]
    assert all(len(e.input_ids) <= 17 for e in found)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_sides_and_packed(both, side):
    ours, theirs = both("smollm2-135m")
    texts = ["hi", "a longer sentence", "two words"]
    found = ours(texts, padding_side=side)
    want = theirs(texts, padding=True, padding_side=side, return_tensors="pt")
    assert torch.equal(found["input_ids"], want["input_ids"]) and torch.equal(found["attention_mask"], want["attention_mask"])
    packed = ours.packed(texts)
    flat = [e.input_ids for e in ours.encode(texts)]
    assert packed.input_ids.tolist() == sum(flat, []) and packed.lengths.tolist() == [len(f) for f in flat]


def test_presplit_words_keep_their_spaces(both, weights, tmp_path):
    words = ["Hello", "wonderful", "world", "!"]
    bert, theirs = both("minilm")
    e = bert.encode([words], words=True)[0]
    want = theirs([words], is_split_into_words=True)
    assert e.input_ids == want["input_ids"][0] and e.word_ids == want.word_ids(0)
    plain, _ = both("smollm2-135m")
    with pytest.warns(UserWarning, match="add_prefix_space=True"):
        plain.encode([words], words=True)
    plain.save(tmp_path)
    spaced = load_tokenizer_in(tmp_path)
    e = spaced.encode([words], words=True)[0]
    assert spaced.decode(e.input_ids) == " Hello wonderful world !" and sorted(set(e.word_ids)) == [0, 1, 2, 3]
    assert e.input_ids == plain.encode([" Hello wonderful world !"])[0].input_ids


def load_tokenizer_in(folder):
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return load_tokenizer(folder, add_prefix_space=True)


def test_wordpiece_from_its_vocabulary_alone(both, weights, tmp_path):
    (tmp_path / "vocab.txt").write_bytes((weights / "minilm/vocab.txt").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    ours, full = load_tokenizer(tmp_path), both("minilm")[0]
    assert [e.input_ids for e in ours.encode(TEXTS)] == [e.input_ids for e in full.encode(TEXTS)]
    assert "token_type_ids" in ours(["a"])


@pytest.mark.parametrize("name", NAMES)
def test_saved_tokenizer_is_read_by_both(both, name, tmp_path):
    ours, _ = both(name)
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    for text, e in zip(TEXTS, ours.encode(TEXTS)):
        assert peer(text)["input_ids"] == e.input_ids == again.encode([text])[0].input_ids
    assert again.chat_template == ours.chat_template and again.special == ours.special


def test_what_does_not_fit_together_is_refused(both, tmp_path):
    ours, _ = both("minilm")
    cases = [
        ({"texts": "one"}, "list of texts"),
        ({"texts": [["a"]]}, "words=True"),
        ({"texts": ["a"], "pairs": []}, "pairs"),
        ({"texts": ["a"], "truncation": "middle"}, "longest_first"),
        ({"texts": ["a"], "truncation": "only_second"}, "needs pairs"),
        ({"texts": ["a"], "truncation": "only_first", "max_length": 2}, "no room"),
        ({"texts": ["a"], "truncation": "only_first", "max_length": 8, "stride": 6}, "no room"),
    ]
    for options, message in cases:
        with pytest.raises(TokenizerError, match=message):
            ours.encode(**options)
    with pytest.raises(TokenizerError, match="stride"):  # the first text leaves two places
        ours.encode(["one two three"], ["red " * 9], truncation="only_second", max_length=8, stride=2)
    with pytest.raises(TokenizerError, match="padding_side"):
        ours(["a"], padding_side="top")
    for file in ("tokenizer.json", "vocab.txt"):
        (tmp_path / file).write_text("{ nonsense")
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(TokenizerError, match=file):
            load_tokenizer(tmp_path)
        (tmp_path / file).unlink()
