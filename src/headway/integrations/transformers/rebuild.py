"""From transformers' mask functions back to their structure.

transformers composes closures `f(b, h, q, k) -> bool`. Outside of a compiled graph a closure can be read: its qualified
name says what it is and its cells hold the window, the ids or the parts. What is not recognised, a user's function for
instance, is evaluated to a bool tensor: exact, only not sparse. Inside a graph closures cannot be read; there the plain
functions are known by identity and the windows by the arguments that go with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.attention.masks import Band, Mask, causal, dense, documents, sliding_bidirectional, window
from headway.attention.masks.expr import And, Or

EVERYTHING = window(None, None)


@dataclass
class Frame:
    """The rectangle that a mask function is asked about: queries from `q_offset` on, keys from `kv_offset` on."""

    batch: Any
    q_len: Any
    kv_len: Any
    q_offset: Any
    kv_offset: Any
    device: Any
    vmap: bool = False

    @property
    def q(self) -> Tensor:
        return torch.arange(self.q_len, device=self.device) + self.q_offset

    @property
    def k(self) -> Tensor:
        return torch.arange(self.kv_len, device=self.device) + self.kv_offset

    @property
    def positions(self) -> Tensor | None:
        """Query positions (Lq,) with the keys counted from 0; None if the queries stand at the last keys."""
        if not isinstance(self.q_offset, Tensor) and self.q_offset - self.kv_offset == self.kv_len - self.q_len:
            return None
        return self.q - self.kv_offset


def rebuild(fn: Callable, frame: Frame) -> Mask:
    """The mask that equals `fn` on the frame, in key slots counted from the frame's first key."""
    return _read(fn, frame, inside=False)


def rebuild_in_graph(fn: Callable, frame: Frame, arguments: dict) -> Mask:
    """The same while Dynamo traces."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if fn is causal_mask_function:
        return causal()
    if fn is bidirectional_mask_function:
        return EVERYTHING
    size, config = arguments.get("local_size"), arguments.get("config")
    if size is not None and not frame.vmap and getattr(config, "attention_chunk_size", None) is None:
        if arguments.get("allow_is_causal_skip", False):  # neither packed nor blockwise nor a user's function
            return Band(size - 1, 0)
        if arguments.get("allow_is_bidirectional_skip", False):
            return sliding_bidirectional(radius=size)
    return dense(_evaluate(fn, frame))


def _read(fn: Callable, frame: Frame, inside: bool) -> Mask:
    """`inside`: an enclosing intersection keeps to documents, in which positions and slots have the same distances."""
    kind, cells = _identity(fn)
    if kind == "causal_mask_function":
        return causal()
    if kind == "bidirectional_mask_function":
        return EVERYTHING
    if kind == "sliding_window_overlay.<locals>.inner_mask":
        return Band(cells["sliding_window"] - 1, None)  # a window of 0 keeps nothing, as it says
    if kind == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        return sliding_bidirectional(radius=cells["sliding_window"])
    if kind == "chunked_overlay.<locals>.inner_mask":
        left = cells["left_padding"][:, None]

        def chunk(at: Tensor) -> Tensor:
            return torch.div(at[None] - left, cells["chunk_size"], rounding_mode="floor") + left  # not below 0

        return documents(chunk(frame.q), chunk(frame.k))
    if kind == "padding_mask_function.<locals>.inner_mask":
        return padding(cells["padding_mask"], frame)
    if kind == "packed_sequence_mask_function.<locals>.inner_mask":
        ids = cells["packed_sequence_mask"]
        return documents(ids[:, frame.q], ids[:, frame.k])
    if kind == "remap_positions_for_packed_sequence.<locals>.inner_mask" and inside:
        inner, _ = _identity(cells["mask_function"])
        if "chunked" not in inner:
            return _read(cells["mask_function"], frame, inside)
    if kind == "and_masks.<locals>.and_mask":
        parts = cells["mask_functions"]
        inside = inside or any(_identity(p)[0].startswith("packed_sequence_mask_function") for p in parts)
        return intersection([_read(p, frame, inside) for p in parts])
    if kind == "or_masks.<locals>.or_mask":
        return Or(tuple(_read(p, frame, inside) for p in cells["mask_functions"]))
    if kind == "add_offsets_to_mask_function.<locals>.inner_mask":
        moved = Frame(
            frame.batch, frame.q_len, frame.kv_len, frame.q_offset + cells["q_offset"], frame.kv_offset + cells["kv_offset"],
            frame.device, frame.vmap,
        )  # fmt: skip
        if cells["q_offset"] == cells["kv_offset"]:
            return _read(cells["mask_function"], moved, inside)
    return dense(_evaluate(fn, frame))


def _identity(fn: Callable) -> tuple[str, dict]:
    """The qualified name of one of transformers' mask functions and what its closure holds; ("", {}) for any other."""
    if getattr(fn, "__module__", None) != "transformers.masking_utils":
        return "", {}
    names = fn.__code__.co_freevars
    return fn.__qualname__, {n: c.cell_contents for n, c in zip(names, fn.__closure__ or ())}


def intersection(parts: list[Mask]) -> Mask:
    """All of the parts, those dropped that keep everything."""
    needed = [p for p in parts if p is not EVERYTHING]
    if len(needed) < 2:
        return needed[0] if needed else EVERYTHING
    return And(tuple(needed))


def padding(real: Tensor, frame: Frame) -> Mask:
    """The keys that a padding mask (B, at least the last key), nonzero = real, marks as real.

    Outside of a graph its values are looked at once: an all-ones mask is no mask, and real tokens in one run, padded on
    the left, the right or both, are an interval, so that no work is done on the padding.
    """
    missing = frame.kv_len + frame.kv_offset - real.shape[-1]
    if missing > 0:
        real = torch.nn.functional.pad(real, (0, missing))
    real = real[:, frame.kv_offset : frame.kv_offset + frame.kv_len].bool()
    if torch.compiler.is_compiling():
        return dense(real[:, None, None, :])
    edges = real[:, 1:] & ~real[:, :-1]
    runs = edges.sum(-1) + real[:, 0] if real.shape[1] else edges.sum(-1)
    full, single = torch.stack([real.all(), (runs <= 1).all()]).tolist()
    if full:
        return EVERYTHING
    if not single:
        return dense(real[:, None, None, :])
    ids = torch.where(real, 0, -1)
    return documents(torch.zeros(1, frame.q_len, dtype=torch.int64, device=real.device), ids)


def _evaluate(fn: Callable, frame: Frame) -> Tensor:
    """The values of `fn`, bool (B or 1, 1, Lq, Lk)."""
    b, h = torch.arange(frame.batch, device=frame.device), torch.arange(1, device=frame.device)
    if not frame.vmap:
        allowed = fn(b[:, None, None, None], h[None, :, None, None], frame.q[None, None, :, None], frame.k[None, None, None, :])
    else:
        for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            fn = torch.vmap(fn, in_dims=dims, out_dims=0)
        allowed = fn(b, h, frame.q, frame.k)
    return allowed.bool().expand(-1, -1, frame.q_len, frame.kv_len)


def band_of(mask: Mask) -> tuple[int | None, int | None] | None:
    """(left, right) of the narrowest band that bounds the mask, None if none does."""
    bands = [mask] if isinstance(mask, Band) else []
    if isinstance(mask, And):
        bands = [p for p in (band_of_part(m) for m in mask.parts) if p is not None]
    lefts = [b.left for b in bands if b.left is not None]
    rights = [b.right for b in bands if b.right is not None]
    return (min(lefts, default=None), min(rights, default=None)) if lefts or rights else None


def band_of_part(mask: Mask) -> Band | None:
    if isinstance(mask, Band):
        return mask
    found = band_of(mask) if isinstance(mask, And) else None
    return None if found is None else Band(*found)
