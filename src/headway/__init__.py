"""One attention call for every transformer, on every backend, with the same meaning everywhere."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # what __getattr__ below gives
    from headway.attention import attention_backend as attention_backend
    from headway.attention import attention_full as attention_full
    from headway.attention import plan_attention as plan_attention
    from headway.attention import register_backend as register_backend
    from headway.checkpoints.load import load as load
    from headway.encoding import encode as encode
    from headway.generation import generate as generate
    from headway.text.load import load_tokenizer as load_tokenizer

_PLACES = {
    "attention_backend": "headway.attention",
    "attention_full": "headway.attention",
    "plan_attention": "headway.attention",
    "register_backend": "headway.attention",
    "load": "headway.checkpoints.load",
    "load_tokenizer": "headway.text.load",
    "generate": "headway.generation",
    "encode": "headway.encoding",
}

__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str):
    """Imports what is asked for, when it is asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
