"""Beam search: the `beams` likeliest continuations are kept at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headway.cache import DynamicCache
from headway.generation.settings import Settings
from headway.packing import Packed


@torch.no_grad()
def beam_search(model, prompts: Sequence[Sequence[int]], settings: Settings, stops: set[int]):
    """The best finished beam of each prompt by log-probability / length ** length_penalty. Returns `Generated`."""
    from headway.generation.generate import Generated

    out = Generated([], [] if settings.logprobs else None)
    for prompt in prompts:
        tokens, logprobs = _one(model, list(prompt), settings, stops)
        out.tokens.append(tokens)
        if out.logprobs is not None:
            out.logprobs.append(logprobs)
    return out


def _one(model, prompt: list[int], s: Settings, stops: set[int]) -> tuple[list[int], list[float]]:
    device, cache = model.device, DynamicCache()
    logits = model(packed=Packed.from_lists([prompt], device), past_key_values=cache, logits_to_keep=1).logits[:, -1]
    total = torch.zeros(1, device=device)
    beams: list[tuple[list[int], list[float]]] = [([], [])]
    finished: list[tuple[float, list[int], list[float]]] = []
    for n in range(s.max_new_tokens):
        step = torch.log_softmax(logits.float(), -1)
        scores = (total[:, None] + step).flatten()
        best, at = scores.topk(min(2 * s.beams, scores.numel()))
        kept = []
        for score, i in zip(best.tolist(), at.tolist()):
            row, token = divmod(i, step.shape[1])
            grown = ([*beams[row][0], token], [*beams[row][1], float(step[row, token])])
            if token in stops or n + 1 == s.max_new_tokens:
                finished.append((score / len(grown[0]) ** s.length_penalty, *grown))
            else:
                kept.append((score, row, grown))
            if len(kept) == s.beams:
                break
        if not kept or _done(finished, kept[0][0], n + 1, s):
            break
        beams = [grown for _, _, grown in kept]
        total = torch.tensor([score for score, _, _ in kept], device=device)
        cache.reorder(torch.tensor([row for _, row, _ in kept], device=device))
        if model.needs_refill(cache):
            cache = cache.fresh()
            rows = Packed.from_lists([prompt + tokens for tokens, _ in beams], device)
            logits = model(packed=rows, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        else:
            last = torch.tensor([[tokens[-1]] for tokens, _ in beams], device=device)
            logits = model(input_ids=last, past_key_values=cache).logits[:, -1]
    _, tokens, logprobs = max(finished, key=lambda f: f[0])
    return tokens, logprobs


def _done(finished, best_alive: float, length: int, s: Settings) -> bool:
    """Whether enough beams have ended and none alive can still overtake the worst of the best."""
    if len(finished) < s.beams:
        return False
    worst = sorted((f[0] for f in finished), reverse=True)[s.beams - 1]
    reachable = s.max_new_tokens if s.length_penalty > 0 else length
    return best_alive / reachable**s.length_penalty <= worst
