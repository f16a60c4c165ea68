"""Generation on tiny random models, against transformers' own and against single rows."""

from __future__ import annotations

import pytest
import torch

from headway.cache import StaticCache
from headway.errors import InputError
from headway.generation import Settings, generate
from headway.generation.sampling import Sampler, filtered, penalised
from tests.models.families import build

PROMPTS = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16]]
DECODERS = ["llama", "gemma2", "gemma3", "phi3", "glm", "gpt2"]


@pytest.mark.parametrize("name", DECODERS)
def test_a_batch_of_different_lengths_equals_single_rows_and_transformers(name):
    theirs, ours = build(name, "causal-lm")
    ours.config.eos_token_id = theirs.generation_config.eos_token_id = None
    batch = generate(ours, PROMPTS, max_new_tokens=12)
    for prompt, tokens in zip(PROMPTS, batch.tokens):
        assert generate(ours, [prompt], max_new_tokens=12).tokens[0] == tokens
        want = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert want[0, len(prompt) :].tolist() == tokens


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_caches_and_backends_give_the_same_tokens(cache, backend):
    _, ours = build("llama", "causal-lm")
    want = generate(ours, PROMPTS, max_new_tokens=10).tokens
    ours.attention.use(backend)
    assert generate(ours, PROMPTS, max_new_tokens=10, cache=cache).tokens == want


def test_compiled_decoding_gives_the_same_tokens_with_a_constant_number_of_graphs():
    """Later prompts get their own answers, and further calls of other lengths no further graph."""
    _, ours = build("llama", "causal-lm")
    ours.config.eos_token_id = None
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for prompts, new in ((PROMPTS, 8), ([[7, 7], [8], [9, 9]], 5), ([[3] * 9, [4], [5]], 7), (PROMPTS[::-1], 11)):
        want = generate(ours, prompts, max_new_tokens=new).tokens
        assert generate(ours, prompts, max_new_tokens=new, cache="static", compile=True).tokens == want
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_compiled_decoding_stops_where_the_static_cache_is_full():
    _, ours = build("llama", "causal-lm")
    ours.config.eos_token_id = None
    for compiled in (False, True):
        with pytest.raises(InputError, match="holds 8 tokens"):
            generate(ours, [[5, 6, 7]], max_new_tokens=9, cache=StaticCache(8), compile=compiled)


def test_longrope_switches_as_generation_crosses_the_original_length():
    """What was cached with short frequencies is computed again: each token equals that of a run without a cache."""
    _, ours = build("phi3-longrope", "causal-lm")
    ours.config.eos_token_id = None
    prompt = [5, 6, 7, 8, 9]
    tokens = generate(ours, [prompt, [4, 3]], max_new_tokens=10).tokens
    for start, got in ((prompt, tokens[0]), ([4, 3], tokens[1])):
        row = list(start)
        for token in got:
            with torch.no_grad():
                assert int(ours(input_ids=torch.tensor([row])).logits[0, -1].argmax()) == token
            row.append(token)


def test_longrope_refuses_to_read_keys_of_other_frequencies():
    """Eight tokens is where the scaling changes."""
    _, ours = build("phi3-longrope", "causal-lm")
    ours.config.eos_token_id = None
    more = torch.tensor([[5, 6]])
    with torch.no_grad():
        cache = ours(input_ids=torch.full((1, 7), 5), use_cache=True).past_key_values
        with pytest.raises(InputError, match="passes 8 tokens"):
            ours(input_ids=more, past_key_values=cache)
        cache = ours(input_ids=torch.full((1, 5), 5), use_cache=True).past_key_values
        with pytest.raises(InputError, match="passes 8 tokens"):  # what came before the prompt is not known
            generate(ours, more.tolist(), max_new_tokens=4, cache=cache)
        cache = ours(input_ids=torch.full((1, 9), 5), use_cache=True).past_key_values
        assert ours(input_ids=more, past_key_values=cache).logits.shape == (1, 2, 97)


def test_continuing_from_a_cache():
    from headway.cache import DynamicCache

    _, ours = build("llama", "causal-lm")
    ours.config.eos_token_id = None
    want = generate(ours, [[5, 6, 7, 8, 9]], max_new_tokens=6).tokens[0]
    cache = DynamicCache()
    with torch.no_grad():
        ours(input_ids=torch.tensor([[5, 6, 7]]), past_key_values=cache)
    assert generate(ours, [[8, 9]], max_new_tokens=6, cache=cache).tokens[0] == want


def test_stops_and_log_probabilities():
    _, ours = build("llama", "causal-lm")
    ours.config.eos_token_id = None
    free = generate(ours, [PROMPTS[0]], max_new_tokens=8, logprobs=True)
    stop = free.tokens[0][3]
    at = free.tokens[0].index(stop)
    assert generate(ours, [PROMPTS[0]], max_new_tokens=8, stop_ids=(stop,)).tokens[0] == free.tokens[0][: at + 1]
    row = PROMPTS[0] + free.tokens[0]
    with torch.no_grad():
        p = torch.log_softmax(ours(input_ids=torch.tensor([row])).logits[0], -1)
    want = [float(p[len(PROMPTS[0]) - 1 + i, t]) for i, t in enumerate(free.tokens[0])]
    torch.testing.assert_close(torch.tensor(free.logprobs[0]), torch.tensor(want), atol=1e-5, rtol=1e-4)


def test_sampling_is_reproducible_and_rows_do_not_depend_on_the_batch():
    _, ours = build("llama", "causal-lm")
    ours.config.eos_token_id = None
    call = dict(max_new_tokens=8, temperature=1.0, top_p=0.9, seed=4)
    batch = generate(ours, PROMPTS, **call).tokens
    assert batch == generate(ours, PROMPTS, **call).tokens
    assert batch == [generate(ours, [p], **call).tokens[0] for p in PROMPTS]
    assert batch != generate(ours, PROMPTS, **{**call, "seed": 5}).tokens


def test_filters_by_hand():
    logits = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()
    keep = lambda **kw: (filtered(logits, Settings(temperature=1.0, **kw)) > -torch.inf)[0].tolist()
    assert keep(top_k=1) == [True, False, False, False]
    assert keep(top_p=0.5) == [True, False, False, False] and keep(top_p=0.6) == [True, True, False, False]
    assert keep(min_p=0.3) == [True, True, True, False] and keep(min_p=1.0) == [True, False, False, False]
    got = penalised(torch.tensor([[2.0, -2.0, 1.0]]), [torch.tensor([0, 1, 1])], 2.0)
    assert got.tolist() == [[1.0, -4.0, 1.0]]


def test_sampling_follows_the_distribution():
    sampler = Sampler(Settings(temperature=1.0, seed=0), 4000, "cpu")
    for i, g in enumerate(sampler.generators):
        g.manual_seed(i)
    drawn = sampler(torch.tensor([0.7, 0.2, 0.1]).log().expand(4000, 3))
    share = torch.bincount(drawn, minlength=3) / 4000
    torch.testing.assert_close(share, torch.tensor([0.7, 0.2, 0.1]), atol=0.03, rtol=0)


def test_beam_search_equals_transformers():
    theirs, ours = build("gpt2", "causal-lm")
    ours.config.eos_token_id = theirs.generation_config.eos_token_id = None
    got = generate(ours, PROMPTS, max_new_tokens=6, beams=3).tokens
    for prompt, tokens in zip(PROMPTS, got):
        want = theirs.generate(torch.tensor([prompt]), max_new_tokens=6, num_beams=3, do_sample=False, pad_token_id=0)
        assert want[0, len(prompt) :].tolist() == tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": -1},
        {"top_p": 0},
        {"top_k": 0},
        {"min_p": 2},
        {"beams": 2, "temperature": 1.0},
        {"beams": 2, "repetition_penalty": 1.5},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InputError):
        Settings(**wrong)


def test_an_empty_prompt_and_an_unknown_cache_are_refused():
    _, ours = build("llama", "causal-lm")
    with pytest.raises(InputError, match="prompt 1 is empty"):
        generate(ours, [[1], []])
    with pytest.raises(InputError, match="cache must be"):
        generate(ours, [[1]], cache="huge")
    for call in ({"cache": "static"}, {"cache": StaticCache(9)}, {"compile": True}):
        with pytest.raises(InputError, match="a dynamic cache of its own"):
            generate(ours, [[1]], beams=2, **call)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3"])
def test_a_ring_of_the_window_gives_the_same_tokens(name):
    """Prompts shorter and longer than the window of 4 or 5, steps far past it, and a chunk on a turned ring."""
    from headway.cache import DynamicCache, SlidingCache

    _, ours = build(name, "causal-lm")
    ours.config.eos_token_id = None
    want = generate(ours, PROMPTS, max_new_tokens=14).tokens
    assert generate(ours, PROMPTS, max_new_tokens=14, cache="sliding").tokens == want
    caches = [DynamicCache(), SlidingCache(ours.windows())]
    parts = [torch.tensor([[5, 6, 7, 8, 9, 10, 11]]), torch.tensor([[12, 13, 14]]), torch.tensor([[15]])]
    with torch.no_grad():
        for part in parts:
            a, b = (ours(input_ids=part, past_key_values=c).logits for c in caches)
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    for layer, window in ours.windows().items():
        assert caches[1].keys[layer].shape[2] == window
    assert caches[1].ring[max(ours.windows().values())].max() == 10
