"""Packing: positions, gathers and scatters, by hand."""

from __future__ import annotations

import pytest
import torch

from headway.errors import InputError
from headway.nn.pooling import first, last, mean
from headway.packing import Packed, pack


def test_left_and_right_padding_by_hand():
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 1, 0, 0]])
    index = pack(3, 4, mask, "cpu")
    assert index.indices.tolist() == [0, 1, 5, 6, 7, 8, 9]
    assert index.cu_seqlens.tolist() == [0, 2, 5, 7] and index.positions.tolist() == [0, 1, 0, 1, 2, 0, 1]
    assert index.max_len == 3 and index.last().tolist() == [1, 4, 6]


def test_holes_keep_their_true_distances():
    assert pack(1, 6, torch.tensor([[0, 1, 0, 0, 1, 1]]), "cpu").positions.tolist() == [0, 3, 4]


def test_a_full_mask_is_no_mask():
    assert pack(2, 3, torch.ones(2, 3), "cpu").uniform and pack(2, 3, None, "cpu").positions.tolist() == [0, 1, 2, 0, 1, 2]


def test_scatter_undoes_gather_with_zeros_on_padding_and_gradients_through_both():
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])
    index = pack(2, 4, mask, "cpu")
    y = index.scatter(index.gather(x))
    assert torch.equal(y, x * mask[..., None])
    assert torch.autograd.gradcheck(lambda x: index.scatter(index.gather(x).sin()), x)


def test_an_empty_row():
    index = pack(2, 3, torch.tensor([[0, 0, 0], [1, 0, 0]]), "cpu")
    assert index.cu_seqlens.tolist() == [0, 0, 1] and index.scatter(torch.ones(1, 1, 2)).sum() == 2


def test_the_compiled_form_has_a_static_size_and_the_same_meaning():
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]])
    x = torch.randn(2, 3, 2)

    def through(x, mask):
        index = pack(2, 3, mask, x.device)
        packed = index.gather(x)
        return packed.shape[1], index.scatter(packed * 2)

    length, y = torch.compile(through, backend="eager", fullgraph=True, dynamic=True)(x, mask)
    assert length == 6 and torch.equal(y, x * 2 * mask[..., None])


def test_packed_from_lists():
    packed = Packed.from_lists([[5, 6], [], [7]])
    assert packed.input_ids.tolist() == [5, 6, 7] and packed.cu_seqlens.tolist() == [0, 2, 2, 3]
    assert packed.positions.tolist() == [0, 1, 0] and packed.lengths.tolist() == [2, 0, 1]


def test_pooling_by_hand():
    x = torch.tensor([[[1.0], [3.0], [10.0]]])
    cu = torch.tensor([0, 2, 3])
    assert mean(x, cu).tolist() == [[2.0], [10.0]] and first(x, cu).tolist() == [[1.0], [10.0]]
    assert last(x, cu).tolist() == [[3.0], [10.0]] and mean(x, torch.tensor([0, 0, 3]))[0].tolist() == [0.0]


def test_masks_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"\(2, 3\)"):
        pack(2, 3, torch.ones(3, 2), "cpu")
