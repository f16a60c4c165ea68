"""Who decides: argument of the call > context > layer > model > default. Nothing process-wide is ever written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch.compiler import is_compiling

from headway.attention.plan import DEFAULT_POLICY, Policy
from headway.attention.registry import get_backend

_context: ContextVar[tuple[str, Policy] | None] = ContextVar("headway_attention_backend", default=None)


class _Traced(threading.local):
    """The same for compiled graphs: Dynamo can guard on a thread's attribute, not on a ContextVar.

    Compiled code sees the block that its thread entered last, so asyncio tasks of one thread whose blocks overlap should
    pass `backend=` to compiled calls; uncompiled calls keep such tasks apart.
    """

    def __init__(self):
        self.choice: tuple[str, Policy] | None = None


_traced = _Traced()


@contextmanager
def attention_backend(name: str = "auto", policy: Policy | None = None) -> Iterator[None]:
    """Within the block, and in this thread or task only, attention calls use backend `name` under `policy`.

    An argument of a call still wins. Raises ValueError for an unknown name, before anything runs.
    """
    if name != "auto":
        get_backend(name)
    choice = (name, policy or DEFAULT_POLICY)
    if is_compiling():  # a block inside compiled code, which cannot write a ContextVar
        before, _traced.choice = _traced.choice, choice
        try:
            yield
        finally:
            _traced.choice = before
        return
    token, _traced.choice = _context.set(choice), choice
    try:
        yield
    finally:
        _context.reset(token)
        _traced.choice = _context.get()  # not what was there before: another task's block may have ended since


def resolve(layer: str | None) -> str:
    """The backend that a call without an argument of its own asks for: the context's, else the layer's, else "auto"."""
    context = current()
    if context is not None and context[0] != "auto":
        return context[0]
    return layer or "auto"


def current() -> tuple[str, Policy] | None:
    """What the innermost `attention_backend` block says, if any."""
    return _traced.choice if is_compiling() else _context.get()
