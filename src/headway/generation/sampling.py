"""From logits to the next token."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.generation.settings import Settings


class Sampler:
    """Draws the next token of each row. Each row has a generator of its own, so rows do not depend on one another."""

    def __init__(self, settings: Settings, batch: int, device):
        self.settings = settings
        seed = settings.seed if settings.seed is not None else int(torch.randint(2**62, (1,)))
        self.generators = [torch.Generator(device).manual_seed(seed) for _ in range(batch)]

    def __call__(self, logits: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        """logits (B, V) -> (B,). seen: the tokens of each row so far, for the repetition penalty."""
        s = self.settings
        if s.repetition_penalty != 1.0 and seen is not None:
            logits = penalised(logits, seen, s.repetition_penalty)
        if s.temperature == 0:
            return logits.argmax(-1)
        p = torch.softmax(filtered(logits.float() / s.temperature, s), -1)
        return torch.cat([torch.multinomial(row, 1, generator=g) for row, g in zip(p, self.generators)])


def penalised(logits: Tensor, seen: list[Tensor], penalty: float) -> Tensor:
    """Logits of tokens that a row has seen, made less likely."""
    logits = logits.clone()
    for row, tokens in zip(logits, seen):
        tokens = tokens.unique()
        chosen = row[tokens]
        row[tokens] = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
    return logits


def filtered(logits: Tensor, s: Settings) -> Tensor:
    """-inf for tokens that top_k, top_p or min_p rule out; the likeliest token always stays."""
    if s.top_k is not None and s.top_k < logits.shape[-1]:
        least = logits.topk(s.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if s.top_p is not None and s.top_p < 1.0:
        ordered, order = logits.sort(-1, descending=True)
        p = torch.softmax(ordered, -1)
        beyond = p.cumsum(-1) - p >= s.top_p  # what comes before a token reaches the mass already
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    if s.min_p is not None and s.min_p > 0:
        p = torch.softmax(logits, -1)
        logits = logits.masked_fill(p < s.min_p * p.amax(-1, keepdim=True), -torch.inf)
    return logits
