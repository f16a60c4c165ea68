"""Recording the plans of the attention calls in a block: how `explain` and the tests see which kernel ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

recording: ContextVar[list | None] = ContextVar("headway_attention_record", default=None)


@contextmanager
def record_plans() -> Iterator[list]:
    """Yields a list that collects (plan, (B, Hq, Lq, Lk)) of every attention call made in the block by this thread."""
    calls: list = []
    token = recording.set(calls)
    try:
        yield calls
    finally:
        recording.reset(token)
