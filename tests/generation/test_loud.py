"""Generation with weights large enough that one wrong key changes the tokens: against runs without any cache."""

from __future__ import annotations

import pytest
import torch

from headway.generation import generate
from tests.models.families import build

PROMPTS = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16]]


def loud(name: str):
    _, ours = build(name, "causal-lm")
    ours.config.eos_token_id = None
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in ours.parameters():
            if p.dim() == 2:
                p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return ours


@torch.no_grad()
def scores(model, row: list[int]):
    """Log-probabilities of the token after `row`, from the whole of it."""
    return torch.log_softmax(model(input_ids=torch.tensor([row])).logits[0, -1], -1)


def greedy(model, prompt: list[int], count: int) -> list[int]:
    row = list(prompt)
    for _ in range(count):
        row.append(int(scores(model, row).argmax()))
    return row[len(prompt) :]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "phi3", "phi3-longrope", "glm", "gpt2"])
def test_every_cache_gives_the_tokens_of_runs_without_one(name):
    ours = loud(name)
    want = [greedy(ours, p, 12) for p in PROMPTS]
    for cache in ("dynamic", "static", "sliding"):
        assert generate(ours, PROMPTS, max_new_tokens=12, cache=cache).tokens == want, cache


def test_beams_read_no_keys_of_other_frequencies():
    """Longrope changes its frequencies after eight tokens: each step's log-probability is that of the whole sequence."""
    ours = loud("phi3-longrope")
    out = generate(ours, PROMPTS, max_new_tokens=8, beams=3, logprobs=True)
    for prompt, tokens, got in zip(PROMPTS, out.tokens, out.logprobs):
        want = [float(scores(ours, prompt + tokens[:i])[t]) for i, t in enumerate(tokens)]
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_beams_that_end_early_equal_transformers(length_penalty):
    theirs, _ = build("llama", "causal-lm")
    ours = loud("llama")
    theirs.load_state_dict(ours.state_dict())
    ended = 0
    for prompt in PROMPTS:
        free = theirs.generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False, pad_token_id=0, eos_token_id=None)
        end = int(free[0, len(prompt) + 4])  # a token that greedy decoding meets
        call = dict(max_new_tokens=10, do_sample=False, num_beams=3, length_penalty=length_penalty, early_stopping="never")
        want = theirs.generate(torch.tensor([prompt]), eos_token_id=end, pad_token_id=0, **call)[0, len(prompt) :].tolist()
        want = want[: want.index(end) + 1] if end in want else want
        ours.config.eos_token_id = end
        got = generate(ours, [prompt], max_new_tokens=10, beams=3, length_penalty=length_penalty).tokens[0]
        assert got == want
        ended += end in want
    assert ended or length_penalty > 1  # which prefers long ones
