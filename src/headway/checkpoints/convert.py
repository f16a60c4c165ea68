"""Converting checkpoints to folders in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path

from headway.checkpoints.load import load
from headway.checkpoints.resolve import resolve
from headway.checkpoints.save import save_model
from headway.errors import CheckpointError
from headway.text.load import load_tokenizer


def convert_gguf(src: str | Path, dst: str | Path, dtype: str | None = None) -> None:
    """Writes the model and tokenizer of a GGUF file into folder `dst`; weights are dequantised to `dtype` (float32)."""
    if not resolve(src).is_gguf:
        raise CheckpointError(f"'{src}' is no GGUF file")
    model = load(src, dtype=dtype)
    save_model(model, dst, tokenizer=load_tokenizer(src))
