"""Losses by hand and against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from headway.errors import InputError
from headway.nn.losses import cross_entropy, sequence_loss, shifted, span_loss


def test_all_ignored_is_zero_with_zero_gradients():
    logits = torch.randn(4, 7, requires_grad=True)
    loss = cross_entropy(logits, torch.full((4,), -100))
    loss.backward()
    assert float(loss.detach()) == 0.0 and torch.equal(logits.grad, torch.zeros(4, 7))


def test_an_empty_batch_is_zero_too():
    logits = torch.zeros(0, 7, requires_grad=True)
    assert float(cross_entropy(logits, torch.zeros(0, dtype=torch.long)).detach()) == 0.0


def test_mean_over_what_counts_or_the_sum_over_a_given_number():
    logits = torch.zeros(3, 4)
    labels = torch.tensor([1, -100, 2])
    assert float(cross_entropy(logits, labels)) == pytest.approx(math.log(4))
    for number in (8, torch.tensor(8)):
        assert float(cross_entropy(logits, labels, number)) == pytest.approx(2 * math.log(4) / 8)


def test_half_precision_logits_are_summed_in_fp32():
    logits = torch.randn(300, 50).bfloat16()
    labels = torch.randint(0, 50, (300,))
    got = cross_entropy(logits, labels)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), F.cross_entropy(logits.double(), labels), atol=1e-6, rtol=1e-6)


def test_labels_move_left_within_their_sequence_and_never_across():
    labels = torch.tensor([1, 2, 3, 4, 5, 6])
    assert shifted(labels, torch.tensor([0, 3, 3, 4, 6])).tolist() == [2, 3, -100, -100, 6, -100]


def test_sequence_losses():
    logits = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    single, multi = torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert torch.equal(sequence_loss(logits, single, None, 2), F.cross_entropy(logits, single))
    want = -torch.stack([torch.sigmoid(torch.tensor(z)).log() for z in (1.0, 1.0, 0.5, 2.0)]).mean()
    torch.testing.assert_close(sequence_loss(logits, multi, None, 2), want)
    assert float(sequence_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0]), None, 1)) == 2.5
    assert float(sequence_loss(logits, torch.zeros(2, 2), "regression", 2)) == pytest.approx((1 + 1 + 0.25 + 4) / 4)
    with pytest.raises(InputError, match="unknown problem_type 'ranking'"):
        sequence_loss(logits, single, "ranking", 2)


def test_spans_outside_the_sequence_are_ignored():
    logits = torch.zeros(2, 4)
    inside = span_loss(logits, logits, torch.tensor([1, 9]), torch.tensor([2, -1]))
    assert float(inside) == pytest.approx(math.log(4))
    assert float(span_loss(logits, logits, torch.tensor([4, 9]), torch.tensor([5, 7]))) == 0.0


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="2 labels were given for 3"):
        cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"\[0, 4\)"):
        cross_entropy(torch.zeros(1, 4), torch.tensor([4]))
