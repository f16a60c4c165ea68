"""Fitting the tensors of a checkpoint to a model: prefixes, ties, new heads, and one error that lists all that is wrong."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from headway.errors import CheckpointError

PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def fit(model, tensors: dict[str, Tensor], where: str, *, new_head: bool) -> None:
    """Puts `tensors` into `model` (built on the meta device), in place.

    A backbone checkpoint fits a model with a head and the other way round. With `new_head`, parameters outside the
    backbone that the checkpoint lacks are initialised and named in a warning; every other difference is an error.
    """
    own = dict(model.state_dict(keep_vars=True))
    tensors = with_prefix(tensors, own, model.base_model_prefix)
    _complete_ties(model, tensors, own, where)
    missing = sorted(n for n in own if n not in tensors)
    unexpected = sorted(n for n in tensors if n not in own and not ignorable(n, model))
    shapes = sorted(n for n, t in tensors.items() if n in own and t.shape != own[n].shape)
    kinds = sorted(n for n, t in tensors.items() if n in own and own[n].is_floating_point() and t.dtype not in PLAIN)
    fresh = []
    if new_head:
        unexpected = [n for n in unexpected if not _is_head(n, model)]  # what is left out is another task's head
        fresh = [n for n in [*missing, *shapes] if _is_head(n, model)]
        shapes = [n for n in shapes if n not in fresh]
    missing = [n for n in missing if n not in fresh]
    if missing or unexpected or shapes or kinds:
        wrong = {
            "missing": missing,
            "unexpected": unexpected,
            "wrong shape": [f"{n} {tuple(tensors[n].shape)} instead of {tuple(own[n].shape)}" for n in shapes],
            "no plain weights": [f"{n} is {str(tensors[n].dtype).removeprefix('torch.')}" for n in kinds],
        }
        raise CheckpointError(_report(where, type(model).__name__, wrong))
    state = {n: tensors[n] for n in own if n in tensors and n not in fresh}
    model.load_state_dict(state, strict=False, assign=True)
    if fresh:
        _initialise(model, fresh, next(iter(state.values())))
        warnings.warn(
            f"{where} has no {type(model).__name__} head; these are newly initialised and need training: {', '.join(fresh)}",
            stacklevel=3,
        )
    model.tie_weights()
    model.init_buffers()


def _complete_ties(model, tensors: dict[str, Tensor], own: dict[str, Tensor], where: str) -> None:
    """Fills in the half of a tied pair that a checkpoint lacks, whichever it is.

    Where it stores both halves and they differ, the weights are right and the config is not: the pair is untied.
    """
    if not model.config.tie_word_embeddings:
        return
    for absent, present in model.tied_weights.items():
        for one, other in ((absent, present), (present, absent)):
            if one in own and one not in tensors and other in tensors:
                tensors[one] = tensors[other]
    pairs = [(tensors[a], tensors[p]) for a, p in model.tied_weights.items() if a in own and a in tensors and p in tensors]
    if any(not torch.equal(a, p) for a, p in pairs if a is not p and a.shape == p.shape):
        warnings.warn(f"{where} stores different values for weights that its config ties; they are not tied", stacklevel=5)
        model.config.tie_word_embeddings = False
        tensors.update({a: tensors[a].clone() for a in model.tied_weights if a in own and a in tensors})


def with_prefix(tensors: dict[str, Tensor], own: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Names as the model has them: the backbone's prefix added or taken away where that is all that differs."""
    out = {}
    for name, tensor in tensors.items():
        candidates = (name, f"{prefix}.{name}", name.removeprefix(prefix + "."), *legacy(name, prefix))
        out[next((c for c in candidates if c in own), name)] = tensor
    return out


def legacy(name: str, prefix: str) -> list[str]:
    """Older spellings: LayerNorm's gamma and beta."""
    new = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return [new, f"{prefix}.{new}", new.removeprefix(prefix + ".")] if new != name else []


def ignorable(name: str, model) -> bool:
    """Tensors that hold no weights (tables that are recomputed), and heads that the published layouts carry along."""
    ends = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", "embeddings.position_ids")
    if name.endswith(ends) or name == "position_ids":
        return True
    # BERT's pretraining checkpoints carry a pooler and a next-sentence head that a masked LM does not have
    return name.startswith(("cls.seq_relationship.", f"{model.base_model_prefix}.pooler."))


def _is_head(name: str, model) -> bool:
    """Whether a parameter is no part of the backbone proper: a task's head, or the pooler that heads are built on."""
    prefix = model.base_model_prefix
    if hasattr(model, prefix):
        return not name.startswith(f"{prefix}.") or name.startswith(f"{prefix}.pooler.")
    return name.split(".")[0] not in dict(model.named_children()) or name.startswith("pooler.")


def _initialise(model, names: list[str], like: Tensor) -> None:
    """Initial values for the named parameters, with the dtype of `like`."""
    for owner in dict.fromkeys(n.rpartition(".")[0] for n in names):
        module = model.get_submodule(owner)
        for leaf, old in list(module.named_parameters(recurse=False)):
            if f"{owner}.{leaf}".lstrip(".") in names:
                blank = torch.zeros(old.shape, dtype=like.dtype)
                setattr(module, leaf, torch.nn.Parameter(blank, requires_grad=old.requires_grad))
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.ones_(module.weight)
        model.init_weights(module)


def _report(where: str, model: str, wrong: dict[str, list[str]]) -> str:
    lines = [f"{where} does not fit {model}:"]
    for what, names in wrong.items():
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            lines.append(f"  {what}: {', '.join(names[:8])}{more}")
    return "\n".join(lines)
