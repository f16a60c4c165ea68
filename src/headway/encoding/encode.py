"""Texts or token lists to vectors: packed to a budget of tokens, never padded, order kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.errors import InputError
from headway.nn.pooling import POOLINGS
from headway.packing import Packed

BUDGET = 2048  # tokens in one forward pass: enough for the matrix products, small enough for the caches


class Encoder:
    """A model with its tokenizer and pooling.

    pooling: cls, mean, last, or "tokens" for one array (length, hidden) per text. normalize: vectors of length 1.
    budget: tokens in one forward pass; a longer text runs alone.
    """

    def __init__(self, model, tokenizer=None, *, pooling: str = "mean", normalize: bool = False, budget: int = BUDGET):
        if pooling not in (*POOLINGS, "tokens"):
            raise InputError(f"pooling must be one of {', '.join((*POOLINGS, 'tokens'))}, {pooling!r} was given")
        if budget < 1:
            raise InputError(f"the token budget must be at least 1, {budget} was given")
        self.model, self.tokenizer, self.pooling, self.normalize, self.budget = model, tokenizer, pooling, normalize, budget

    @classmethod
    def load(cls, ref: str | Path, **options) -> Encoder:
        """From a reference as in `headway.load`; pooling and normalisation as its sentence-transformers files say."""
        from headway.checkpoints.load import load
        from headway.text.load import load_tokenizer

        keys = ("attention", "dtype", "device", "revision", "allow_pickle")
        model = load(ref, task="base", **{k: options.pop(k) for k in keys if k in options})
        tokenizer, said = load_tokenizer(ref), described(model.source)
        limit = said.pop("max_length", None)
        if limit is not None and (tokenizer.max_length is None or limit < tokenizer.max_length):
            tokenizer.max_length = limit
        return cls(model, tokenizer, **{**said, **options})

    @property
    def width(self) -> int:
        return self.model.config.hidden_size

    def __call__(self, texts: Sequence[Any]) -> np.ndarray | list[np.ndarray]:
        """(N, hidden) float32 in the order of the texts; with pooling "tokens" a list of (length, hidden)."""
        rows = list(self.stream(texts))
        if self.pooling == "tokens":
            return [r for batch in rows for r in batch]
        return np.concatenate(rows) if rows else np.zeros((0, self.width), dtype=np.float32)

    def stream(self, texts: Iterable[Any]) -> Iterator[Any]:
        """As a call, but batch by batch from any iterable; each batch holds the next texts in order."""
        for ids in self.batches(texts):
            yield self.vectors(ids)

    def batches(self, texts: Iterable[Any]) -> Iterator[list[list[int]]]:
        """Token lists of as many texts as the budget holds, in order."""
        batch: list[list[int]] = []
        held = 0
        for ids in self.tokens(texts):
            if batch and held + len(ids) > self.budget:
                yield batch
                batch, held = [], 0
            batch.append(ids)
            held += len(ids)
        if batch:
            yield batch

    def tokens(self, texts: Iterable[Any], chunk: int = 256) -> Iterator[list[int]]:
        """The token ids of each text; lists of ids pass through."""
        held: list[str] = []
        for text in texts:
            if isinstance(text, str):
                held.append(text)
                if len(held) == chunk:
                    yield from self._tokenised(held)
                    held = []
                continue
            yield from self._tokenised(held)
            held = []
            yield [int(i) for i in text]
        yield from self._tokenised(held)

    def _tokenised(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        if self.tokenizer is None:
            raise InputError("texts need a tokenizer; give one to Encoder, or pass lists of token ids")
        cut = {} if self.tokenizer.max_length is None else {"truncation": "longest_first"}
        return [e.input_ids for e in self.tokenizer.encode(texts, **cut)]

    @torch.no_grad()
    def vectors(self, ids: list[list[int]]) -> Any:
        """One forward pass over token lists."""
        packed = Packed.from_lists(ids, self.model.device)
        x: Tensor = self.model(packed=packed).last_hidden_state.float()
        if self.pooling == "tokens":
            if self.normalize:
                x = torch.nn.functional.normalize(x, dim=-1)
            return [t.cpu().numpy() for t in x[0].split([len(i) for i in ids])]
        x = POOLINGS[self.pooling](x, packed.cu_seqlens)
        return (torch.nn.functional.normalize(x, dim=-1) if self.normalize else x).cpu().numpy()


def described(folder: Path) -> dict[str, Any]:
    """What sentence-transformers' files in a model's folder say of pooling, normalisation and length."""
    modules = folder / "modules.json"
    if not modules.is_file():
        return {}
    out: dict[str, Any] = {}
    limits = folder / "sentence_bert_config.json"
    if limits.is_file() and json.loads(limits.read_text()).get("max_seq_length"):
        out["max_length"] = json.loads(limits.read_text())["max_seq_length"]
    for module in json.loads(modules.read_text()):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Normalize":
            out["normalize"] = True
        file = folder / str(module.get("path", "")) / "config.json"
        if kind == "Pooling" and file.is_file():
            said = json.loads(file.read_text())
            names = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
            for theirs, ours in names.items():
                if said.get(theirs):
                    out["pooling"] = ours
            if said.get("pooling_mode") in POOLINGS:
                out["pooling"] = said["pooling_mode"]
    return out


def encode(ref: Any, texts: Sequence[Any], **options) -> np.ndarray | list[np.ndarray]:
    """Vectors of texts (or token lists) by the model behind `ref`, or by an `Encoder`. Options as of `Encoder.load`."""
    return (ref if isinstance(ref, Encoder) else Encoder.load(ref, **options))(texts)
