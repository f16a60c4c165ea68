"""Losses of the heads. Labels of -100 are ignored; if all are, the loss is 0 with zero gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.errors import InputError

IGNORED = -100


def cross_entropy(logits: Tensor, labels: Tensor, num_items=None) -> Tensor:
    """Mean over labels that count, or their sum / num_items so that accumulated steps equal one large batch.

    logits (..., classes), labels (...) int64. Computed in fp32.
    """
    flat, wanted = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).to(logits.device)
    if not torch.compiler.is_compiling() and len(flat) != len(wanted):
        raise InputError(f"{len(wanted)} labels were given for {len(flat)} predictions")
    try:
        total = F.cross_entropy(flat.float(), wanted, ignore_index=IGNORED, reduction="sum")
    except IndexError as e:
        raise InputError(f"labels must be in [0, {logits.shape[-1]}), or {IGNORED} to be ignored: {e}") from e
    count = (wanted != IGNORED).sum().clamp(min=1) if num_items is None else num_items
    return total / count


def shifted(labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Labels (T,) of packed sequences moved one to the left; the last token of each sequence predicts nothing."""
    moved = torch.cat([labels[1:], labels.new_full((1,), IGNORED)])
    slot = torch.arange(labels.shape[0], device=labels.device)
    return torch.where(torch.isin(slot, cu_seqlens[1:] - 1), IGNORED, moved)


def sequence_loss(logits: Tensor, labels: Tensor, problem_type: str | None, num_labels: int) -> Tensor:
    """Loss of a sequence head, logits (B, num_labels), by problem type (inferred from the labels if None).

    regression: mean squared error; single_label_classification: cross entropy, labels (B,) int64;
    multi_label_classification: binary cross entropy, labels (B, num_labels) float.
    """
    if problem_type is None:
        if num_labels == 1:
            problem_type = "regression"
        else:
            problem_type = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
    if problem_type == "regression":
        return F.mse_loss(logits.float().squeeze(-1) if num_labels == 1 else logits.float(), labels.float().view_as(
            logits.squeeze(-1) if num_labels == 1 else logits))  # fmt: skip
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels)
    if problem_type == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
    raise InputError(
        f"unknown problem_type {problem_type!r}; known: regression, single_label_classification, multi_label_classification"
    )


def span_loss(starts: Tensor, ends: Tensor, start_at: Tensor, end_at: Tensor) -> Tensor:
    """Question answering: mean of the two cross entropies; targets outside the sequence are ignored. starts (B, L)."""
    length = starts.shape[1]

    def one(logits: Tensor, at: Tensor) -> Tensor:
        at = at.reshape(-1)
        return cross_entropy(logits, torch.where((at < 0) | (at >= length), IGNORED, at))

    return (one(starts, start_at) + one(ends, end_at)) / 2
