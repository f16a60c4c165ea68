"""Who decides: argument of the call > context > layer > model > default. Nothing process-wide is ever written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headway.attention.plan import Policy
from headway.attention.registry import get_backend

_context: ContextVar[tuple[str, Policy] | None] = ContextVar("headway_attention_backend", default=None)


@contextmanager
def attention_backend(name: str = "auto", policy: Policy | None = None) -> Iterator[None]:
    """Within the block, and in this thread or task only, attention calls use backend `name` under `policy`.

    An argument of a call still wins. Raises ValueError for an unknown name, before anything runs.
    """
    if name != "auto":
        get_backend(name)
    token = _context.set((name, policy or Policy()))
    try:
        yield
    finally:
        _context.reset(token)


def current() -> tuple[str, Policy] | None:
    """What the innermost `attention_backend` block says, if any."""
    return _context.get()
