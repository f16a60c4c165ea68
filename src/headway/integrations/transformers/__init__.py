"""Headway inside Hugging Face transformers: `register()`, then `attn_implementation="headway"`."""

from headway.integrations.transformers.packing import PackingCollator, packed
from headway.integrations.transformers.register import NAMES, implementation, register
from headway.integrations.transformers.unpad import unpad

__all__ = ["NAMES", "PackingCollator", "implementation", "packed", "register", "unpad"]
