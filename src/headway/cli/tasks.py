"""`headway fill-mask`, `classify` and `tag`."""

from __future__ import annotations

import torch

from headway.checkpoints.load import load
from headway.errors import InputError
from headway.text.load import load_tokenizer


def _labels(config, n: int) -> list[str]:
    names = config.id2label or {}
    return [names.get(i, f"LABEL_{i}") for i in range(n)]


@torch.no_grad()
def fill_mask(ref: str, text: str, top: int, attention: str) -> None:
    model, tokenizer = load(ref, task="masked-lm", attention=attention), load_tokenizer(ref)
    if tokenizer.mask_id is None:
        raise InputError("this tokenizer has no mask token; fill-mask needs an encoder trained with one")
    inputs = tokenizer([text.replace("[MASK]", tokenizer.special["mask_token"])], truncation=None)
    at = (inputs["input_ids"][0] == tokenizer.mask_id).nonzero().flatten().tolist()
    if not at:
        raise InputError(f"the text has no mask; write {tokenizer.special['mask_token']} or [MASK] where a word is missing")
    logits = model(**inputs).logits[0]
    for place in at:
        p = torch.softmax(logits[place].float(), -1)
        best = p.topk(top)
        for value, token in zip(best.values.tolist(), best.indices.tolist()):
            print(f"{value:.3f}  {tokenizer.decode([token]).strip()}")


@torch.no_grad()
def classify(ref: str, text: str, pair: str | None, attention: str) -> None:
    model, tokenizer = load(ref, task="sequence-classification", attention=attention), load_tokenizer(ref)
    logits = model(**tokenizer([text], None if pair is None else [pair], truncation="longest_first")).logits[0].float()
    many = model.config.problem_type == "multi_label_classification"
    p = torch.sigmoid(logits) if many else torch.softmax(logits, -1)
    for value, name in sorted(zip(p.tolist(), _labels(model.config, len(p))), reverse=True):
        print(f"{value:.3f}  {name}")


@torch.no_grad()
def tag(ref: str, text: str, attention: str) -> None:
    model, tokenizer = load(ref, task="token-classification", attention=attention), load_tokenizer(ref)
    encoding = tokenizer.encode([text])[0]
    logits = model(**tokenizer([text])).logits[0]
    names, seen = _labels(model.config, logits.shape[-1]), set()
    for i, word in enumerate(encoding.word_ids):
        if word is None or word in seen:  # a word goes by its first token
            continue
        seen.add(word)
        spans = [encoding.offsets[j] for j, w in enumerate(encoding.word_ids) if w == word]
        print(f"{text[spans[0][0] : spans[-1][1]]}\t{names[int(logits[i].argmax())]}")
