"""Sentence Transformers without work on padding."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from headway.integrations.transformers import unpad as unpad_encoder

Model = TypeVar("Model", bound=nn.Module)


def unpad(model: Model) -> Model:
    """From now on, `model.encode(...)` and training compute on real tokens only; the same `SentenceTransformer` is returned.

    Also for a `CrossEncoder` and a `SparseEncoder`: every transformers encoder inside is unpadded (see
    `headway.integrations.transformers.unpad`). Vectors and scores are unchanged up to rounding.
    Raises ValueError if there is none, or one of a kind that is not known.
    """
    from transformers import PreTrainedModel

    found = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    inner = {id(child) for m in found for child in m.modules() if child is not m}
    outermost = [m for m in found if id(m) not in inner]
    if not outermost:
        raise ValueError(f"{type(model).__name__} holds no transformers model to unpad")
    for m in outermost:
        unpad_encoder(m)
    return model
