"""Masks rebuilt from transformers' mask functions equal the ones that transformers builds itself, entry by entry."""

from __future__ import annotations

import pytest
import torch
from transformers import masking_utils as mu

from headway.integrations.transformers.mask import HeadwayMask
from headway.integrations.transformers.register import make_mask

B, L = 3, 11


def ids(*rows):
    return torch.tensor(rows)


PACKED = ids([0] * 4 + [1] * 4 + [2] * 3, [0] * 11, [0] * 2 + [1] * 9)
POSITIONS = torch.stack([torch.cat([torch.arange(int((row == i).sum())) for i in row.unique()]) for row in PACKED])
BLOCKS = ids([-1] * 3 + [0] * 3 + [-1] * 5, [-1] * 11, [4, 4, -1, 5, 5, -1, -1, 4, 4, -1, -1])  # one id in two runs
LEFT = torch.tensor([0, 2, 5])


def packed(fn):
    fn = mu.remap_positions_for_packed_sequence(fn, POSITIONS)
    return mu.and_masks(fn, mu.packed_sequence_mask_function(PACKED))


FUNCTIONS = {
    "causal": mu.causal_mask_function,
    "full": mu.bidirectional_mask_function,
    "sliding": mu.sliding_window_causal_mask_function(4),
    "sliding 1": mu.sliding_window_causal_mask_function(1),
    "sliding 0": mu.sliding_window_causal_mask_function(0),
    "bidirectional sliding": mu.sliding_window_bidirectional_mask_function(2),
    "chunked": mu.chunked_causal_mask_function(3, LEFT),
    "packed": packed(mu.causal_mask_function),
    "packed sliding": packed(mu.sliding_window_causal_mask_function(3)),
    "packed chunked": packed(mu.chunked_causal_mask_function(2, torch.zeros(B, dtype=torch.long))),
    "blockwise": mu.or_masks(mu.causal_mask_function, mu.blockwise_overlay(BLOCKS)),
    "blockwise sliding": mu.or_masks(mu.sliding_window_causal_mask_function(2), mu.blockwise_overlay(BLOCKS)),
    "a user's": mu.and_masks(mu.causal_mask_function, lambda b, h, q, k: (q + k + b) % 3 != 0),
    "a user's union": mu.or_masks(mu.causal_mask_function, lambda b, h, q, k: k < 4),
    "remapped only": mu.remap_positions_for_packed_sequence(mu.causal_mask_function, POSITIONS),
}
FRAMES = {  # q_length, kv_length, q_offset, kv_offset
    "prefill": (11, 11, 0, 0),
    "continued": (4, 11, 7, 0),
    "decode": (1, 11, 10, 0),
    "static": (4, 11, 3, 0),
    "static, tensor offset": (1, 11, torch.tensor(6), 0),
    "sliding cache": (1, 6, 10, 5),
}
PADDING = {
    "none": None,
    "ones": torch.ones(B, L, dtype=torch.bool),
    "left": torch.arange(L) >= torch.tensor([0, 2, 5])[:, None],
    "right": torch.arange(L) < torch.tensor([11, 9, 4])[:, None],
    "holes": torch.arange(L).expand(B, L) % 4 != 2,
    "short": torch.arange(9) < torch.tensor([9, 9, 4])[:, None],
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_the_dense_mask_of_transformers(name, frame):
    q_len, kv_len, q_offset, kv_offset = FRAMES[frame]
    for padding in PADDING.values():
        args = {
            "batch_size": B, "q_length": q_len, "kv_length": kv_len, "q_offset": q_offset, "kv_offset": kv_offset,
            "mask_function": FUNCTIONS[name], "attention_mask": padding,
        }  # fmt: skip
        want = mu.sdpa_mask(allow_is_causal_skip=False, allow_is_bidirectional_skip=False, **args).expand(B, 1, q_len, kv_len)
        mask = make_mask(**args)
        got = torch.ones(1) if mask.bound is None else mask.bound.to_bool()
        assert torch.equal(got.expand(want.shape).bool(), want)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("causal", "causal"), ("sliding", "window"), ("bidirectional sliding", "window"), ("chunked", "documents"),
        ("packed", "documents"), ("packed sliding", "documents"), ("full", None), ("blockwise", "dense"), ("a user's", "dense"),
    ],
)  # fmt: skip
def test_structure_is_kept(name, kind):
    """An interval of keys for each query stays one, so that no n x n mask is made; padding on one side does not change that."""
    for padding in (None, PADDING["ones"]):
        mask = make_mask(B, L, L, mask_function=FUNCTIONS[name], attention_mask=padding)
        assert (mask.bound and mask.bound.kind) == kind
    mask = make_mask(B, L, L, mask_function=FUNCTIONS[name], attention_mask=PADDING["left"])
    assert mask.bound.kind == ("dense" if kind == "dense" else "documents")


def test_what_transformers_asks_of_a_mask():
    mask = make_mask(B, 4, L, mask_function=mu.causal_mask_function, q_offset=7)
    assert isinstance(mask, HeadwayMask) and mask.ndim == 4 and mask.shape == (B, 1, 4, L)
    assert make_mask(B, 4, L, mask_function=mu.causal_mask_function, attention_mask=mask) is mask
    assert mask[:, :, :, :L] is mask and mask.to("cpu", torch.float32) is mask
    cut = mask[:, :, :, : L - 2]
    assert cut.shape == (B, 1, 4, L - 2)
    assert torch.equal(cut.bound.to_bool()[0, 0], mask.bound.to_bool()[0, 0][:, : L - 2])


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m * 2, lambda m: m + 1.0, lambda m: ~m, lambda m: m == 0, lambda m: bool(m), lambda m: m.float(),
        lambda m: m[0], lambda m: m.masked_fill(m, 0), lambda m: m & torch.ones(1),
    ],
)  # fmt: skip
def test_a_mask_used_as_a_tensor_is_an_error(use):
    mask = make_mask(B, L, L, mask_function=mu.causal_mask_function)
    with pytest.raises((TypeError, AttributeError), match="Headway"):
        use(mask)
