"""Caches by hand: right-padded, true lengths per row."""

from __future__ import annotations

import pytest
import torch

from headway.cache import DynamicCache, SlidingCache, StaticCache
from headway.errors import InputError
from headway.packing import Packed, index_of, pack


def add(cache, lists):
    index = index_of(Packed.from_lists(lists))
    step = cache.begin(index)
    values = torch.tensor([t for row in lists for t in row], dtype=torch.float32).view(1, 1, -1, 1)
    return step, cache.update(0, values, -values, step)


@pytest.mark.parametrize("make", [DynamicCache, lambda: StaticCache(8)])
def test_rows_of_different_length(make):
    cache = make()
    step, _ = add(cache, [[1, 2, 3], [4]])
    assert step.fresh and cache.lengths.tolist() == [3, 1]
    step, (k, v) = add(cache, [[5], [6, 7]])
    assert not step.fresh and step.slots.tolist() == [3, 1, 2]
    assert k[0, 0, :4, 0].tolist() == [1, 2, 3, 5] and k[1, 0, :3, 0].tolist() == [4, 6, 7]
    assert torch.equal(v, -k) and cache.lengths.tolist() == [4, 3] and cache.get_seq_length() == 4


def test_a_static_cache_never_changes_its_shape_and_refuses_more_than_it_holds():
    cache = StaticCache(4)
    _, (k, _) = add(cache, [[1, 2]])
    assert k.shape == (1, 1, 4, 1)
    with pytest.raises(InputError, match="holds 4 tokens"):
        add(cache, [[1, 2, 3]])


def test_reorder_and_crop():
    cache = DynamicCache()
    add(cache, [[1, 2], [3, 4]])
    cache.reorder(torch.tensor([1, 1, 0]))
    assert cache.keys[0][:, 0, :2, 0].tolist() == [[3, 4], [3, 4], [1, 2]]
    cache.crop(1)
    assert cache.lengths.tolist() == [1, 1, 1]


def test_a_cache_belongs_to_one_batch():
    cache = DynamicCache()
    add(cache, [[1], [2]])
    with pytest.raises(InputError, match="2 rows"):
        cache.begin(pack(3, 1, None, "cpu"))


def test_growing_keeps_what_was_there():
    cache = DynamicCache()
    add(cache, [list(range(1, 60))])
    for n in range(60, 200):
        _, (k, _) = add(cache, [[n]])
    assert k[0, 0, :, 0].tolist() == [float(n) for n in range(1, 200)]


def test_a_refused_addition_leaves_the_cache_as_it_was():
    cache = StaticCache(4)
    add(cache, [[1, 2]])
    with pytest.raises(InputError, match="holds 4 tokens"):
        add(cache, [[1, 2, 3]])
    _, (k, _) = add(cache, [[3, 4]])
    assert cache.lengths.tolist() == [4] and k[0, 0, :, 0].tolist() == [1, 2, 3, 4]


def test_a_static_cache_counts_the_longest_row_and_not_the_sum_of_longest_additions():
    cache = StaticCache(4)
    add(cache, [[1, 2, 3], [4]])
    add(cache, [[5], [6, 7, 8]])
    assert cache.lengths.tolist() == [4, 4]


def test_a_mask_with_holes_cannot_fill_a_cache():
    holes = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])
    with pytest.raises(InputError, match="zeros between ones"):
        DynamicCache().begin(pack(2, 4, holes, "cpu"))
    assert DynamicCache().begin(pack(2, 4, torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0]]), "cpu")).after.tolist() == [0, 2]


def test_a_ring_by_hand():
    cache = SlidingCache({0: 3})
    add(cache, [[10, 11, 12, 13], [20]])
    assert cache.keys[0][0, 0, :, 0].tolist() == [13, 11, 12] and cache.ring[3][0].tolist() == [3, 1, 2]
    step, (k, _) = add(cache, [[14], [21]])  # one new token: the ring itself
    assert k[0, 0, :, 0].tolist() == [13, 14, 12] and cache.key_positions(0)[0].tolist() == [3, 4, 2]
    assert k[1, 0, :2, 0].tolist() == [20, 21] and cache.key_positions(0)[1, 2] < -(2**20)
    step, (k, _) = add(cache, [[15, 16], [22]])  # several: behind the ring as it was
    assert k[0, 0, :, 0].tolist() == [13, 14, 12, 15, 16] and cache.key_positions(0)[0].tolist() == [3, 4, 2, 5, 6]
    assert cache.key_positions(0)[1, 4] < -(2**20) and cache.keys[0][0, 0, :, 0].tolist() == [16, 14, 15]
    with pytest.raises(InputError, match="cannot be cropped"):
        cache.crop(2)
