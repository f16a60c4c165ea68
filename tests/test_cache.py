"""Caches by hand: right-padded, true lengths per row."""

from __future__ import annotations

import pytest
import torch

from headway.cache import DynamicCache, StaticCache
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
