"""Text in and out: tokenizers and chat templates."""
