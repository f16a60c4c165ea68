"""Generation: prompts run packed, then one token a row and step from a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from torch import Tensor

from headway.cache import DynamicCache, SlidingCache, StaticCache
from headway.errors import InputError
from headway.generation.beams import beam_search
from headway.generation.sampling import Sampler
from headway.generation.settings import Settings
from headway.packing import Packed


@dataclass
class Generated:
    """New tokens of each row, without the prompt; the token that ended a row is the last one. logprobs: of each token."""

    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] | None = None
    texts: list[str] | None = None


def generate(model, prompts: Sequence[Sequence[int]], settings: Settings | None = None, *, cache=None, **options) -> Generated:
    """Continues each prompt (a list of token ids; lengths may differ) as if it were alone.

    settings, or its fields as keywords. cache: "dynamic" (default), "sliding" (windowed layers keep their window only),
    "static" (fixed shapes), or a cache object from earlier calls, which holds what came before the prompts. compile: the
    decoding step is compiled, best with a static cache: one graph, and one more for all other sizes.
    """
    compiled = options.pop("compile", False)
    settings = settings or Settings(**options)
    if settings.beams > 1:
        if cache not in (None, "dynamic") or compiled:
            raise InputError("beam search runs on a dynamic cache of its own; leave cache and compile out, or beams at 1")
        return beam_search(model, prompts, settings, ends(model, settings))
    out = Generated([[] for _ in prompts], [[] for _ in prompts] if settings.logprobs else None)
    for step, logprobs in steps(model, prompts, settings, cache, compiled):
        for row, token in enumerate(step):
            if token is not None:
                out.tokens[row].append(token)
                if out.logprobs is not None and logprobs is not None:
                    out.logprobs[row].append(logprobs[row])
    return out


def ends(model, settings: Settings) -> set[int]:
    """Tokens that end a row."""
    end = model.config.eos_token_id
    own = [] if end is None else [end] if isinstance(end, int) else list(end)
    return {*own, *settings.stop_ids}


@torch.no_grad()
def steps(
    model, prompts: Sequence[Sequence[int]], settings: Settings, cache=None, compiled: bool = False
) -> Iterator[tuple[list[int | None], list[float] | None]]:
    """Yields, step by step, each row's new token (None once it has ended) and its log-probability if asked for."""
    if not prompts:
        return
    empty = [i for i, p in enumerate(prompts) if not len(p)]
    if empty:
        raise InputError(f"prompt {empty[0]} is empty; a prompt needs at least one token (the tokenizer's bos, say)")
    device, batch = model.device, len(prompts)
    cache = _cache(cache, model, max(len(p) for p in prompts) + settings.max_new_tokens)
    whole = not cache.filled  # whether the prompts are all there is
    history = [torch.tensor(p, device=device) for p in prompts]
    sampler, stops = Sampler(settings, batch, device), ends(model, settings)
    running = [True] * batch
    decode = _decoder(model, compiled)
    logits = model(packed=Packed.from_lists([list(p) for p in prompts], device), past_key_values=cache, logits_to_keep=1).logits
    for n in range(settings.max_new_tokens):
        logits = logits[:, -1]
        tokens = sampler(logits, history if settings.repetition_penalty != 1.0 else None)
        values = tokens.tolist()
        logprobs = None
        if settings.logprobs:
            logprobs = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, None]).squeeze(-1).tolist()
        yield [v if running[i] else None for i, v in enumerate(values)], logprobs
        running = [alive and v not in stops for alive, v in zip(running, values)]
        if not any(running) or n + 1 == settings.max_new_tokens:
            return
        if settings.repetition_penalty != 1.0 or model.needs_history(cache):
            history = [torch.cat([h, tokens[i : i + 1]]) for i, h in enumerate(history)]
        if model.needs_refill(cache) and whole:
            cache = cache.fresh()
            packed = Packed.from_lists([h.tolist() for h in history], device)
            logits = model(packed=packed, past_key_values=cache, logits_to_keep=1).logits
        else:
            logits = decode(tokens[:, None], cache)


def _cache(cache, model, room: int):
    if cache is None or cache == "dynamic":
        return DynamicCache()
    if cache == "static":
        return StaticCache(room)
    if cache == "sliding":
        return SlidingCache(model.windows())
    if isinstance(cache, DynamicCache):
        return cache
    raise InputError(f"cache must be 'dynamic', 'static', 'sliding' or a cache from headway.cache, {cache!r} was given")


def _step(model, tokens: Tensor, cache) -> Tensor:
    return model(input_ids=tokens, past_key_values=cache).logits


@lru_cache(1)
def _compiled_step():
    return torch.compile(_step)


def _decoder(model, compiled: bool):
    if not compiled:
        return partial(_step, model)

    def step(tokens: Tensor, cache) -> Tensor:
        held: Tensor | None = cache.lengths
        if isinstance(cache, StaticCache) and held is not None:  # the graph cannot look whether there is room
            cache.reserve(held + 1, 1)
        return _compiled_step()(model, tokens, cache)

    return step


def stream_text(model, tokenizer, prompt: str, settings: Settings | None = None, *, stop: Sequence[str] = (), **options):
    """Yields the continuation of one prompt piece by piece, ending before any of the `stop` strings."""
    special = options.pop("add_special_tokens", True)
    settings = settings or Settings(**options)
    end = ends(model, settings)
    (ids,) = _prompt_ids(tokenizer, [prompt], special)

    def new_tokens() -> Iterator[int]:
        for step, _ in steps(model, [ids], settings):
            if step[0] is None or step[0] in end:
                return
            yield step[0]

    held = ""
    for piece in tokenizer.stream(new_tokens()):
        held += piece
        at = min((held.find(s) for s in stop if s in held), default=-1)
        if at >= 0:
            yield held[:at]
            return
        keep = max((_overlap(held, s) for s in stop), default=0)  # the start of a stop string may stand at the end
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    yield held


def _prompt_ids(tokenizer, prompts: Sequence[str], special: bool) -> list[list[int]]:
    """Token ids of prompts. Many chat templates write the BOS token themselves; a prompt never gets a second one."""
    found = [e.input_ids for e in tokenizer.encode(list(prompts), add_special_tokens=special)]
    bos = tokenizer.id_of("bos_token")
    return [ids[1:] if special and bos is not None and ids[:2] == [bos, bos] else ids for ids in found]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)


def generate_text(
    model, tokenizer, prompts: Sequence[str], settings: Settings | None = None, *, stop: Sequence[str] = (), **options
) -> Generated:
    """As `generate`, from texts to texts; a row ends before any of the `stop` strings."""
    special = options.pop("add_special_tokens", True)
    cache = options.pop("cache", None)
    compiled = options.pop("compile", False)
    settings = settings or Settings(**options)
    ids = _prompt_ids(tokenizer, prompts, special)
    if settings.beams > 1 or not stop:
        out = generate(model, ids, settings, cache=cache, compile=compiled)
        out.texts = [tokenizer.decode(t) for t in out.tokens]
    else:
        out = _until_stopped(model, tokenizer, ids, settings, stop, cache, compiled)
    out.texts = [_before(t, stop) for t in out.texts or []]
    return out


def _until_stopped(model, tokenizer, ids, settings, stop, cache, compiled) -> Generated:
    out = Generated([[] for _ in ids], [[] for _ in ids] if settings.logprobs else None)
    done = [False] * len(ids)
    for step, logprobs in steps(model, ids, settings, cache, compiled):
        for row, token in enumerate(step):
            if token is None or done[row]:
                continue
            out.tokens[row].append(token)
            if out.logprobs is not None and logprobs is not None:
                out.logprobs[row].append(logprobs[row])
            done[row] = any(s in tokenizer.decode(out.tokens[row]) for s in stop)
        if all(d or t is None for d, t in zip(done, step)):
            break
    out.texts = [tokenizer.decode(t) for t in out.tokens]
    return out


def _before(text: str, stop: Sequence[str]) -> str:
    at = min((text.find(s) for s in stop if s in text), default=-1)
    return text if at < 0 else text[:at]
