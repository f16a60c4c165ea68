"""Generating text with any causal language model."""

from headway.generation.generate import Generated, generate, generate_text, stream_text
from headway.generation.settings import Settings

__all__ = ["Generated", "Settings", "generate", "generate_text", "stream_text"]
