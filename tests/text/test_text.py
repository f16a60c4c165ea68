"""Tokenizers against transformers' own on real files; chat templates in their sandbox."""

from __future__ import annotations

import json

import pytest
import tokenizers
import transformers as hf

import headway
from headway.errors import TokenizerError
from headway.text.chat import render
from headway.text.tokenizer import Tokenizer

TEXTS = ["Hello, world! It's 2024 and 12345 naïve café 日本語 🎉\n\n  indented\tcode", "", " leading", "a  b   c", "x" * 300]


@pytest.fixture(scope="module")
def minilm(weights):
    return headway.load_tokenizer(weights / "minilm"), hf.AutoTokenizer.from_pretrained(weights / "minilm")


def test_minilm_equals_transformers(minilm):
    ours, theirs = minilm
    assert [e.input_ids for e in ours.encode(TEXTS)] == [theirs(t)["input_ids"] for t in TEXTS]
    got = ours(["one two", "three"], ["four five six", "seven"])
    want = theirs(["one two", "three"], ["four five six", "seven"], padding=True, return_tensors="pt")
    assert got.keys() == want.keys() and all((got[k] == want[k]).all() for k in want)


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
def test_truncation_and_overflow_equal_transformers(minilm, strategy):
    ours, theirs = minilm
    a, b = "one two three four five six seven eight", "nine ten eleven twelve thirteen fourteen fifteen"
    got = ours.encode([a], [b], truncation=strategy, max_length=14, stride=2, overflow=strategy != "longest_first")
    want = theirs(a, b, truncation=strategy, max_length=14, stride=2, return_overflowing_tokens=strategy != "longest_first",
                  return_offsets_mapping=True)  # fmt: skip
    ids = want["input_ids"] if strategy != "longest_first" else [want["input_ids"]]
    offsets = want["offset_mapping"] if strategy != "longest_first" else [want["offset_mapping"]]
    assert [e.input_ids for e in got] == ids
    assert [[tuple(o) for o in e.offsets] for e in got] == [[tuple(o) for o in x] for x in offsets]


def test_words_keep_their_numbers(minilm):
    ours, theirs = minilm
    words = ["unbelievable", "weather", "today"]
    got, want = ours.encode([words], words=True)[0], theirs(words, is_split_into_words=True)
    assert got.input_ids == want["input_ids"] and got.word_ids == want.word_ids()


def byte_level(add_prefix_space: bool):
    core = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate("Ġabc")}, []))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    core.decoder = tokenizers.decoders.ByteLevel()
    return core


def test_byte_level_words_lose_their_spaces_only_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="add_prefix_space"):
        assert Tokenizer(byte_level(False)).encode([["a", "b"]], words=True)[0].input_ids == [1, 2]
    byte_level(False).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "modernbert"}))
    spaced = headway.load_tokenizer(tmp_path, add_prefix_space=True)
    assert spaced.encode([["a", "b"]], words=True)[0].input_ids == [0, 1, 0, 2]


def test_only_the_inputs_that_a_model_takes(tmp_path, minilm):
    core = minilm[0].core
    core.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "modernbert", "max_position_embeddings": 64}))
    modern = headway.load_tokenizer(tmp_path)
    assert set(modern(["a b"])) == {"input_ids", "attention_mask"} and modern.max_length == 64
    assert set(minilm[0](["a b"])) == {"input_ids", "attention_mask", "token_type_ids"}


def test_padding_sides_and_packing(minilm):
    ours, _ = minilm
    left = ours(["one", "one two three"], padding_side="left")
    assert left["attention_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    packed = ours.packed(["one", "one two three"])
    assert packed.cu_seqlens.tolist() == [0, 3, 8]
    assert packed.input_ids.tolist() == left["input_ids"][left["attention_mask"] == 1].tolist()


def test_streaming_gives_whole_characters_and_the_whole_text(minilm):
    core = byte_level(False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    ours = Tokenizer(core)
    text = "naïve 🎉 日本\nnew line"
    pieces = list(ours.stream(ours.encode([text])[0].input_ids))
    assert "".join(pieces) == text and not any("\ufffd" in p for p in pieces) and "🎉" in pieces


def test_bad_calls_are_refused(minilm):
    ours, _ = minilm
    for call, says in (
        (lambda: ours.encode("text"), "list of texts"),
        (lambda: ours.encode(["a"], ["b", "c"]), "one pair for each"),
        (lambda: ours.encode([["a"]]), "words=True"),
        (lambda: ours.encode(["a"], truncation="middle"), "unknown truncation"),
        (lambda: ours.encode(["a"], truncation="only_second", max_length=9), "needs pairs"),
        (lambda: ours.encode(["a"], truncation="only_first", max_length=2), "no room"),
        (lambda: ours(["a"], padding_side="top"), "padding_side"),
        (lambda: ours.chat([{"role": "user", "content": "x"}]), "no chat template"),
    ):
        with pytest.raises(TokenizerError, match=says):
            call()


def test_a_damaged_or_missing_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TokenizerError, match="looked for"):
        headway.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        headway.load_tokenizer(tmp_path)


MESSAGES = [{"role": "user", "content": "<b> & 'q'"}, {"role": "assistant", "content": "fine"}]
TEMPLATE = (
    "{%- for m in messages %}\n<{{ m.role }}>{% generation %}{{ m['content'] }}{% endgeneration %}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}<assistant>{% endif %}{{ tools | tojson if tools else '' }}"
)


def test_templates_equal_transformers():
    from transformers.utils.chat_template_utils import render_jinja_template

    for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "tools": [{"name": "ä<f>"}]}):
        want, _ = render_jinja_template(conversations=[MESSAGES], chat_template=TEMPLATE, **options)
        assert render(TEMPLATE, MESSAGES, **options) == want[0]


def test_continuing_the_last_message():
    assert render(TEMPLATE, MESSAGES, continue_final_message=True).endswith("fine")


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ raise_exception('no') }}",
        "{{ unclosed",
    ],
)
def test_hostile_and_broken_templates_are_refused(hostile):
    with pytest.raises(TokenizerError):
        render(hostile, MESSAGES)


def test_messages_that_are_none():
    for wrong in ([], [{"content": "x"}], ["x"]):
        with pytest.raises(TokenizerError):
            render(TEMPLATE, wrong)
