"""Tokenizers, over the `tokenizers` library: encoding for a model, decoding, streaming, chat.

Only the inputs that a model takes are made; pairs, truncation, overflow and offsets are the library's own.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.errors import TokenizerError
from headway.packing import Packed

TRUNCATIONS = ("longest_first", "only_first", "only_second")


@dataclass
class Encoding:
    """One encoded text (or pair, or overflow window). word_ids and offsets follow input_ids; None for special tokens.

    offsets are (start, end) characters of the text (or, for pre-split words, of the word). source: which input it is of.
    """

    input_ids: list[int]
    token_type_ids: list[int] | None
    special: list[bool]
    offsets: list[tuple[int, int]]
    word_ids: list[int | None]
    sequence_ids: list[int | None]
    source: int = 0


@dataclass
class Tokenizer:
    """A tokenizer for one model. Make one with `headway.load_tokenizer(ref)`.

    special: names (bos_token, eos_token, pad_token, unk_token, cls_token, sep_token, mask_token) to token texts.
    takes_types: whether the model takes token_type_ids.
    """

    core: Any
    special: dict[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    max_length: int | None = None
    padding_side: str = "right"
    takes_types: bool = False

    def __post_init__(self):
        self._lock = threading.Lock()
        self.core.no_padding()
        self.core.no_truncation()

    def __reduce__(self):
        """Pickles, for the workers of a data loader, without the lock."""
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    # ---------------------------------------------------------------- ids
    def id_of(self, name: str) -> int | None:
        """The id of a special token by its name, such as "pad_token"."""
        text = self.special.get(name)
        return None if text is None else self.core.token_to_id(text)

    @property
    def pad_id(self) -> int:
        """The padding token's id; 0 where the tokenizer has none (padding is never computed on)."""
        found = self.id_of("pad_token")
        return 0 if found is None else found

    @property
    def eos_id(self) -> int | None:
        return self.id_of("eos_token")

    @property
    def mask_id(self) -> int | None:
        return self.id_of("mask_token")

    @property
    def vocab_size(self) -> int:
        return self.core.get_vocab_size(with_added_tokens=True)

    # ---------------------------------------------------------------- encoding
    def encode(
        self,
        texts: Sequence[Any],
        pairs: Sequence[Any] | None = None,
        *,
        add_special_tokens: bool = True,
        max_length: int | None = None,
        truncation: str | None = None,
        stride: int = 0,
        overflow: bool = False,
        words: bool = False,
    ) -> list[Encoding]:
        """Encodes texts, or lists of words with `words`, or pairs of them.

        truncation: longest_first, only_first or only_second, to max_length (the model's by default). overflow: what was
        cut comes as further encodings that repeat `stride` tokens. Raises TokenizerError for what does not fit together.
        """
        if isinstance(texts, str):
            raise TokenizerError("encode takes a list of texts; wrap a single one in [ ]")
        if pairs is not None and len(pairs) != len(texts):
            raise TokenizerError(f"{len(texts)} texts and {len(pairs)} pairs were given; give one pair for each text")
        if truncation is None and (max_length is not None or stride or overflow):
            names = ", ".join(TRUNCATIONS)
            raise TokenizerError(f"max_length, stride and overflow need truncation=, which says what is cut: {names}")
        if words and any(isinstance(t, str) for t in [*texts, *(pairs or [])]):
            raise TokenizerError("with words=True each text is a list of words, a string was given")
        if words:
            texts, pairs = [list(t) for t in texts], None if pairs is None else [list(p) for p in pairs]
            self._check_word_spacing()
        elif any(not isinstance(t, str) for t in [*texts, *(pairs or [])]):
            raise TokenizerError("texts must be strings; for lists of words pass words=True")
        cut = None if truncation is None else self._cut(truncation, max_length, stride, pairs is not None, add_special_tokens)
        inputs = list(texts) if pairs is None else list(zip(texts, pairs))
        try:
            with self._lock:  # the library keeps truncation as a state
                if cut is not None:
                    self.core.enable_truncation(**cut)
                try:
                    found = self.core.encode_batch(inputs, is_pretokenized=words, add_special_tokens=add_special_tokens)
                finally:
                    self.core.no_truncation()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library's panics are no Exception
            raise TokenizerError(f"the text cannot be encoded: {error}") from None
        out = []
        for i, one in enumerate(found):
            for part in [one, *(one.overflowing if overflow else [])]:
                out.append(self._encoding(part, i))
        return out

    def _encoding(self, e: Any, source: int) -> Encoding:
        types = e.type_ids if self.takes_types else None
        return Encoding(e.ids, types, [bool(m) for m in e.special_tokens_mask], e.offsets, e.word_ids, e.sequence_ids, source)

    def _cut(self, strategy: str, max_length: int | None, stride: int, pair: bool, special: bool) -> dict[str, Any]:
        """What the library wants to know of a truncation, once it is possible."""
        if strategy not in TRUNCATIONS:
            raise TokenizerError(f"unknown truncation {strategy!r}; known: {', '.join(TRUNCATIONS)}")
        if strategy == "only_second" and not pair:
            raise TokenizerError("truncation 'only_second' needs pairs")
        limit = self.max_length if max_length is None else max_length
        if limit is None:
            raise TokenizerError("truncation needs max_length: the tokenizer states none of its own")
        room = limit - (self.core.num_special_tokens_to_add(pair) if special else 0)
        if room <= 0 or stride >= room:
            raise TokenizerError(f"max_length {limit} with stride {stride} leaves no room for text")
        if stride < 0:
            raise TokenizerError(f"stride is a number of tokens, {stride} was given")
        return {"max_length": limit, "stride": stride, "strategy": strategy}

    def _check_word_spacing(self) -> None:
        """Pre-split words lose their spaces with a byte-level tokenizer that adds none."""
        pre = json.loads(self.core.to_str()).get("pre_tokenizer") or {}
        parts = pre.get("pretokenizers", [pre])
        bare = any(p.get("type") == "ByteLevel" and not p.get("add_prefix_space") for p in parts)
        if bare and not any(p.get("type") == "Metaspace" for p in parts):
            text = "this tokenizer puts no space before pre-split words; load it with add_prefix_space=True"
            warnings.warn(text, stacklevel=4)

    def __call__(
        self,
        texts: Sequence[Any],
        pairs: Sequence[Any] | None = None,
        *,
        padding_side: str | None = None,
        device=None,
        **options,
    ) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, L), and token_type_ids if the model takes them, padded to the longest.

        `options` as in `encode`: texts past the model's length are cut only where `truncation` says how.
        """
        side = padding_side or self.padding_side
        if side not in ("left", "right"):
            raise TokenizerError(f"padding_side must be 'left' or 'right', {side!r} was given")
        encodings = self.encode(texts, pairs, **options)
        width = max((len(e.input_ids) for e in encodings), default=0)
        ids = torch.full((len(encodings), width), self.pad_id)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, e in enumerate(encodings):
            n = len(e.input_ids)
            span = slice(width - n, width) if side == "left" else slice(0, n)
            ids[i, span], mask[i, span] = torch.tensor(e.input_ids, dtype=torch.int64), 1
            if e.token_type_ids is not None:
                types[i, span] = torch.tensor(e.token_type_ids, dtype=torch.int64)
        out = {"input_ids": ids, "attention_mask": mask}
        if self.takes_types:
            out["token_type_ids"] = types
        return {k: v.to(device) for k, v in out.items()}

    def packed(self, texts: Sequence[Any], pairs: Sequence[Any] | None = None, *, device=None, **options) -> Packed:
        """The texts laid end to end, with no padding at all."""
        encodings = self.encode(texts, pairs, **options)
        packed = Packed.from_lists([e.input_ids for e in encodings], device)
        if not self.takes_types:
            return packed
        types = torch.tensor([t for e in encodings for t in e.token_type_ids or []], dtype=torch.int64, device=device)
        return Packed(packed.input_ids, packed.cu_seqlens, packed.positions, types)

    # ---------------------------------------------------------------- decoding
    def decode(self, ids: Sequence[int] | Tensor, skip_special_tokens: bool = True) -> str:
        """One row of token ids as text. Raises TokenizerError for what is no row of ids."""
        try:
            return self.core.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        except (TypeError, ValueError, OverflowError) as error:
            raise TokenizerError(f"decode takes one row of token ids, which are not negative ({error})") from None

    def stream(self, ids: Iterable[int], skip_special_tokens: bool = True) -> Iterator[str]:
        """Text of tokens as they come: a piece is given once its characters are whole."""
        held: list[int] = []  # the tokens of the last piece, which the next one may join on to, and those after it
        done, before = "", 0  # the text and number of the former
        for i in ids:
            held.append(int(i))
            text = self.decode(held, skip_special_tokens)
            if text.endswith("\ufffd") or len(text) <= len(done):
                continue
            yield text[len(done) :]
            held, before = held[before:], len(held) - before
            done = self.decode(held, skip_special_tokens)
        text = self.decode(held, skip_special_tokens)
        if len(text) > len(done):
            yield text[len(done) :]

    # ---------------------------------------------------------------- chat
    def chat(self, messages: Sequence[dict[str, Any]], **options) -> str:
        """The messages in the model's chat format; see `text.chat.render`."""
        from headway.text.chat import render

        if self.chat_template is None:
            raise TokenizerError("this tokenizer has no chat template; pass plain text instead")
        return render(self.chat_template, messages, special=self.special, **options)

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which transformers reads too."""
        self.core.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {
            **self.special,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "padding_side": self.padding_side,
        }
        if self.max_length is not None:
            config["model_max_length"] = self.max_length
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        inputs = ["input_ids", "token_type_ids", "attention_mask"] if self.takes_types else ["input_ids", "attention_mask"]
        config["model_input_names"] = inputs
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
