"""Registering Headway with transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from headway.attention.registry import backends
from headway.integrations.transformers.call import attend
from headway.integrations.transformers.mask import HeadwayMask
from headway.integrations.transformers.packing import current_documents, within
from headway.integrations.transformers.rebuild import (
    EVERYTHING,
    Frame,
    band_of,
    intersection,
    padding,
    rebuild,
    rebuild_in_graph,
)

OLDEST, NEWEST = (5, 24), (6, 0)  # versions from OLDEST up to, and without, NEWEST
NAMES: dict[str, str] = {}  # the names that `register` made, and the backend of each


def implementation(backend: str = "auto") -> str:
    """The `attn_implementation` for a backend: "headway", or "headway:tiled".

    transformers treats every name that contains `flash` or `sdpa` as its own, so these are written `fa` and `torch`:
    "headway:torch" is the backend "sdpa", "headway:fa2" is "flash2".
    """
    return "headway" if backend == "auto" else "headway:" + backend.replace("sdpa", "torch").replace("flash", "fa")


def register() -> None:
    """Makes `attn_implementation="headway"`, and "headway:<backend>", known to transformers. May be called again.

    Raises ImportError if transformers is missing or outside the versions that this was made for.
    """
    check_version()
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for backend in ("auto", *backends()):
        name = implementation(backend)
        NAMES[name] = backend
        ALL_ATTENTION_FUNCTIONS.register(name, partial(attend, backend=backend))
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, make_mask)


def check_version() -> None:
    """Raises ImportError, saying what is accepted, if transformers is not there or another than those tested."""
    wanted = f"Headway's plugin needs transformers >= {OLDEST[0]}.{OLDEST[1]} and < {NEWEST[0]}"
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{wanted}; none is installed") from error
    numbers = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if not OLDEST <= numbers < NEWEST:
        raise ImportError(f"{wanted}; {transformers.__version__} is installed")


def make_mask(
    batch_size: Any,
    q_length: Any,
    kv_length: Any,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = None,
    attention_mask: Any = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **arguments,
) -> HeadwayMask:
    """transformers' mask interface: builds the mask of one kind of layers, once per forward. Never None."""
    if isinstance(attention_mask, HeadwayMask):  # made by `generate` ahead of the forward
        return attention_mask
    frame = Frame(batch_size, q_length, kv_length, q_offset, kv_offset, torch.device(device), use_vmap)
    in_graph = torch.compiler.is_compiling()
    mask = rebuild_in_graph(mask_function, frame, arguments) if in_graph else rebuild(mask_function, frame)
    if attention_mask is not None:
        mask = intersection([mask, padding(attention_mask, frame)])
    inside = current_documents(q_length, kv_length, batch_size)
    if inside is not None:
        mask = intersection([mask, inside])
    expression = None if mask is EVERYTHING else mask
    positions = frame.positions if within.positions is None else within.positions
    return HeadwayMask(expression, batch_size, q_length, kv_length, positions, frame.device, band_of(mask), within.positions)
