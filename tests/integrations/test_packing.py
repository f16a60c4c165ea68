"""Packed sequences give the numbers of separate runs, also where transformers itself mixes them."""

from __future__ import annotations

import pytest
import torch

from headway.integrations.transformers import PackingCollator, packed, register
from tests.integrations import tiny

register()
LENGTHS = ((5, 9, 3), (8, 2, 7))


def sequences(seed: int = 3):
    g = torch.Generator().manual_seed(seed)
    return [[torch.randint(3, 99, (n,), generator=g) for n in row] for row in LENGTHS]


def rows():
    docs = sequences()
    ids = torch.stack([torch.cat(row) for row in docs])
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in LENGTHS])
    return docs, ids, positions


def separate(model, docs):
    return torch.stack([torch.cat([model(d[None], use_cache=False)[0][0] for d in row]) for row in docs])


WAYS = {
    "no mask": {"use_cache": False},
    "all-ones mask": {"attention_mask": torch.ones(2, 17, dtype=torch.int64), "use_cache": False},
    "cache": {"use_cache": True},
    "cache and mask": {"attention_mask": torch.ones(2, 17, dtype=torch.int64), "use_cache": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [tiny.llama, tiny.gemma2, tiny.mistral])
def test_decoders(build, way):
    docs, ids, positions = rows()
    model = build()
    with torch.no_grad():
        want = separate(model, docs)
        model.set_attn_implementation("headway")
        with packed(model):
            got = model(ids, position_ids=positions, **WAYS[way])[0]
        mixed = model(ids, position_ids=positions, **WAYS[way])[0]
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)
    if way != "no mask":  # without `packed` transformers' masks mix the sequences
        assert (mixed - want).abs().max() > 1e-3


@pytest.mark.parametrize("build", [tiny.bert, tiny.modernbert])
def test_encoders(build):
    docs, ids, positions = rows()
    model = build()
    with torch.no_grad():
        want = torch.stack([torch.cat([model(d[None])[0][0] for d in row]) for row in docs])
        model.set_attn_implementation("headway")
        with packed(model):
            got = model(ids, position_ids=positions)[0]
        mixed = model(ids, position_ids=positions)[0]
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)
    assert (mixed - want).abs().max() > 1e-3


def test_gradients_and_checkpointing():
    docs, ids, positions = rows()
    model = tiny.llama().train()
    sum(model(d[None], use_cache=False)[0].pow(2).sum() for row in docs for d in row).backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.set_attn_implementation("headway")
    model.gradient_checkpointing_enable()
    with packed(model):
        model(ids, position_ids=positions, attention_mask=torch.ones_like(ids))[0].pow(2).sum().backward()
    for p, w in zip(model.parameters(), want):
        torch.testing.assert_close(p.grad, w, atol=1e-5, rtol=1e-4)


def test_cumulative_lengths_given_to_the_model():
    docs, ids, positions = rows()
    flat, at = ids.reshape(1, -1), positions.reshape(1, -1)
    cu = torch.tensor([0, *[n for row in LENGTHS for n in row]]).cumsum(0).int()
    model = tiny.mistral()
    with torch.no_grad():
        want = separate(model, docs).reshape(1, 34, -1)
        model.set_attn_implementation("headway")
        got = model(
            flat, position_ids=at, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=9, max_length_k=9,
            attention_mask=torch.ones_like(flat),
        )[0]  # fmt: skip
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)


def test_the_collator_loses_no_loss_and_crosses_no_border():
    docs = [d for row in sequences() for d in row]
    batch = PackingCollator(max_length=20)([{"input_ids": d.tolist()} for d in docs])
    model = tiny.llama()
    losses, counts = zip(*[(model(d[None], labels=d[None]).loss, len(d) - 1) for d in docs])
    want = sum(loss * n for loss, n in zip(losses, counts)) / sum(counts)
    model.set_attn_implementation("headway")
    with packed(model):
        got = model(**batch).loss
    assert batch["input_ids"].shape == (2, 20)
    assert int((batch["labels"] != -100).sum()) == sum(counts)
    torch.testing.assert_close(got, want)


def test_refusals():
    _, ids, positions = rows()
    model = tiny.llama()
    with pytest.raises(ValueError, match="needs Headway's attention"), packed(model):
        pass
    model.set_attn_implementation("headway")
    with torch.no_grad(), packed(model):
        cache = model(ids, position_ids=positions, use_cache=True).past_key_values
        with pytest.raises(ValueError, match="filled or fixed-size cache"):
            model(ids, position_ids=positions, past_key_values=cache)
        model(ids)  # nothing of the failed call is left
    with pytest.raises(ValueError, match="30 tokens, rows hold 20"):
        PackingCollator(max_length=20)([{"input_ids": list(range(30))}])
