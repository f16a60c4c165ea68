"""Mask expressions: a tree of atoms under `&`, `|` and `~`.

Masks are frozen dataclasses and pytrees whose leaves are tensors only, so a compiled graph sees a mask as the tensors
it holds plus a static structure. Equality and hashing go by structure: the hash never reads a tensor's values.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Mask:
    """What may be attended to. True = attend. Combine with `&`, `|`, `~`; see `headway.attention.masks`."""

    data_fields: tuple[str, ...] = ()  # the fields that hold tensors, set by `register`

    def __and__(self, other: Mask) -> Mask:
        return And((self, checked(other)))

    def __or__(self, other: Mask) -> Mask:
        return Or((self, checked(other)))

    def __invert__(self) -> Mask:
        return self.part if isinstance(self, Not) else Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value; combine masks with & | ~ instead of and, or, not")

    def keep(self, at) -> Tensor:
        """Boolean tensor for the entries of a `Place` (see `place.py`)."""
        raise NotImplementedError

    def bind(self, q_len, kv_len, *, batch=1, heads=1, q_positions=None, kv_positions=None, device=None):
        """This mask for one call's lengths and positions: a `BoundMask`, which computes each lowering once.

        Args: q_len, kv_len: Lq and Lk. batch, heads: B and Hq, as far as the mask depends on them. q_positions (Lq,)
        or (B, Lq), kv_positions (Lk,) or (B, Lk): integer tensors; by default keys stand at 0..Lk-1 and queries at
        the last Lq of these. Raises ValueError if a part of the mask was made for other lengths.
        """
        from headway.attention.masks.bound import BoundMask

        return BoundMask(self, q_len, kv_len, batch, heads, q_positions, kv_positions, device)

    def draw(self, q_len: int, kv_len: int, **call) -> str:
        """A terminal picture: one line per query, `#` where it attends. Keywords as in `bind`."""
        from headway.attention.masks.draw import draw

        return draw(self, q_len, kv_len, **call)

    @property
    def structure(self) -> tuple:
        """Static description: type, plain fields, and shape and dtype of tensors. Two equal masks have equal ones."""
        return (type(self).__name__, *(_static(getattr(self, f.name)) for f in dataclasses.fields(self)))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(self.structure)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mask):
            return NotImplemented
        if self.structure != other.structure:
            return False
        mine, theirs = pytree.tree_leaves(self), pytree.tree_leaves(other)
        return all(a is b or torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _static(value: Any):
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    if isinstance(value, Mask):
        return value.structure
    if isinstance(value, tuple):
        return tuple(_static(v) for v in value)
    return value


def checked(value: Any) -> Mask:
    """`value` if it is a Mask; otherwise a TypeError that names the way out."""
    if isinstance(value, Mask):
        return value
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        raise TypeError(
            f"a mask is expected, a bool tensor of shape {tuple(value.shape)} was given; wrap it: masks.dense(tensor) for "
            "one that broadcasts to (B, H, Lq, Lk), masks.padding(tensor) for (B, Lk) with True = real token"
        )
    if isinstance(value, Tensor):
        raise TypeError(
            f"a mask is expected, a {value.dtype} tensor was given; a number tensor is never a mask: pass an additive one as "
            "bias=..., a 0/1 padding mask as masks.padding(tensor.bool()), any other as masks.dense(tensor.bool())"
        )
    raise TypeError(f"a mask is expected, {type(value).__name__} was given; see headway.attention.masks")


def register(*data_fields: str):
    """Class decorator: makes a frozen mask dataclass a pytree whose leaves are the named fields."""

    def decorate(cls):
        cls.data_fields = data_fields
        static = [f.name for f in dataclasses.fields(cls) if f.name not in data_fields]

        def flatten(mask):
            return [getattr(mask, n) for n in data_fields], tuple(getattr(mask, n) for n in static)

        def unflatten(children, context):
            return cls(**dict(zip(data_fields, children)), **dict(zip(static, context)))

        pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=f"headway.masks.{cls.__name__}")
        return cls

    return decorate


@register("parts")
@dataclass(frozen=True, eq=False)
class And(Mask):
    parts: tuple[Mask, ...]

    def keep(self, at) -> Tensor:
        kept = self.parts[0].keep(at)
        for part in self.parts[1:]:
            kept = kept & part.keep(at)
        return kept


@register("parts")
@dataclass(frozen=True, eq=False)
class Or(Mask):
    parts: tuple[Mask, ...]

    def keep(self, at) -> Tensor:
        kept = self.parts[0].keep(at)
        for part in self.parts[1:]:
            kept = kept | part.keep(at)
        return kept


@register("part")
@dataclass(frozen=True, eq=False)
class Not(Mask):
    part: Mask

    def keep(self, at) -> Tensor:
        return ~self.part.keep(at)
