"""Errors of the attention layer."""

from __future__ import annotations


class UnknownBackend(ValueError):
    """No attention backend has that name; the text lists those there are."""


class BackendRefused(RuntimeError):
    """An explicitly named backend cannot compute this call exactly. `reasons` lists every reason."""

    def __init__(self, backend: str, reasons, nearest: str | None):
        self.backend, self.reasons, self.nearest = backend, tuple(reasons), nearest
        lines = [f"attention backend '{backend}' refuses this call:"]
        lines += [f"  - {r.text}" + (f" ({r.fix})" if r.fix else "") for r in self.reasons]
        lines.append(f"  nearest backend that accepts: '{nearest}'" if nearest else "  no registered backend accepts it")
        super().__init__("\n".join(lines))
