"""The mask that transformers carries from a model's entry to its layers."""

from __future__ import annotations

from copy import copy
from typing import Any, NoReturn

import torch
from torch import Tensor

from headway.attention.masks import BoundMask, Mask, dense, documents
from headway.attention.masks.atoms import Dense
from headway.attention.masks.bound import _atoms


class HeadwayMask:
    """A mask of shape (B, 1, Lq, Lk) as far as transformers looks at it; inside, a bound mask that all layers share.

    It is no tensor: a model that calculates with its mask gets an error, not another meaning. `expression` = None is full
    attention. `window` is (left, right) of the mask's band, None where it has none.
    """

    ndim = 4
    dtype = torch.bool

    def __init__(self, expression: Mask | None, batch, q_len, kv_len, q_positions, device, window=None, kv_positions=None):
        self.expression, self.shape, self.device, self.window = expression, (batch, 1, q_len, kv_len), device, window
        self.q_positions = q_positions
        self.band_known = expression is None or not any(isinstance(a, Dense) for a in _atoms(expression))
        self.bound: BoundMask | None = None
        if expression is not None:
            self.bound = expression.bind(
                q_len, kv_len, batch=batch, q_positions=q_positions, kv_positions=kv_positions, device=device
            )
        self.bias: Tensor | None = None
        self.narrowed: dict[Any, HeadwayMask] = {}

    def dim(self) -> int:
        return 4

    def size(self, dim: int | None = None):
        return self.shape if dim is None else self.shape[dim]

    def to(self, *args, **kwargs) -> HeadwayMask:
        """Models move and cast masks; this one is where its batch is and has no dtype to change."""
        return self

    def contiguous(self) -> HeadwayMask:
        return self

    def __getitem__(self, index) -> HeadwayMask:
        """A slice of the mask, as some models cut it to the keys at hand. Whole slices cost nothing."""
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > 4 or not all(isinstance(i, slice) for i in index):
            raise TypeError(f"a Headway mask can be sliced in its four dimensions, not indexed by {index!r}; {ADVICE}")
        whole = [_covers(i, n) for i, n in zip(index, self.shape)]
        if all(whole):
            return self
        if self.bias is not None:
            raise TypeError(f"a mask that carries a position bias cannot be sliced. {ADVICE}")
        if self.bound is None:
            allowed = torch.ones(1, 1, self.shape[2], self.shape[3], dtype=torch.bool, device=self.device)
            allowed = allowed.expand(self.shape)
        else:
            allowed = self.bound.to_bool().expand(self.shape)
        allowed = allowed[index]
        return HeadwayMask(dense(allowed), allowed.shape[0], allowed.shape[2], allowed.shape[3], None, self.device, self.window)

    def within(self, cu_q: Tensor, cu_kv: Tensor) -> HeadwayMask:
        """This mask inside the documents that cumulative lengths describe, made once for all layers."""
        key = (id(cu_q), id(cu_kv))
        if key not in self.narrowed:
            inside = documents.from_cu_seqlens(cu_q, cu_kv)
            both = inside if self.expression is None else self.expression & inside
            made = HeadwayMask(both, self.shape[0], self.shape[2], self.shape[3], self.q_positions, self.device, self.window)
            made.bias = self.bias
            made.narrowed[key] = (cu_q, cu_kv)  # type: ignore[assignment]  # keeps the tensors, hence their ids, alive
            self.narrowed[key] = made
        return self.narrowed[key]

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"this model uses its attention mask as a tensor (.{name}); Headway's is a structure. {ADVICE}")

    def __bool__(self) -> bool:
        raise TypeError(f"a Headway mask has no truth value. {ADVICE}")

    def _no_arithmetic(self, *_) -> NoReturn:
        raise TypeError(f"this model calculates with its attention mask; Headway's is a structure, not numbers. {ADVICE}")

    def __add__(self, bias) -> HeadwayMask:
        """A model that adds its relative position bias to the mask gets the mask that carries the bias."""
        if not isinstance(bias, Tensor) or not bias.is_floating_point() or bias.dim() != 4:
            return self._no_arithmetic()
        made = copy(self)
        made.bias = bias if self.bias is None else self.bias + bias
        return made

    __radd__ = __add__
    __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __or__ = __invert__ = __neg__ = _no_arithmetic
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _no_arithmetic  # type: ignore[assignment]
    __hash__ = object.__hash__


ADVICE = "Use attn_implementation='eager' or 'sdpa' for this model"


def _covers(i: slice, n) -> bool:
    whole = (i.start is None or i.start == 0) and i.step in (None, 1)
    return whole and (i.stop is None or (i.stop >= 0 and i.stop >= n))
