"""The backends by name. `register_backend` adds one; nothing else about attention is process-wide."""

from __future__ import annotations

from headway.attention.backends.base import Backend
from headway.attention.errors import UnknownBackend

_backends: dict[str, Backend] = {}


def register_backend(backend: Backend, *, replace: bool = False) -> None:
    """Makes `backend` selectable by its name. A name that is taken raises ValueError unless `replace`."""
    from headway.attention.plan import forget_plans

    if backend.name in _backends and not replace:
        raise ValueError(f"an attention backend named '{backend.name}' exists already; pass replace=True to replace it")
    _backends[backend.name] = backend
    forget_plans()


def backends() -> dict[str, Backend]:
    """All registered backends by name."""
    return _backends


def get_backend(name: str) -> Backend:
    """The backend of that name; ValueError listing the known names otherwise."""
    found = _backends.get(name)
    if found is None:
        raise UnknownBackend(f"no attention backend is named '{name}'; known: auto, {', '.join(_backends)}")
    return found
