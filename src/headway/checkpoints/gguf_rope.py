"""Rotary scaling as GGUF files state it: in metadata (linear, yarn), or as tables of factors (Llama 3, longrope)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headway.errors import CheckpointError


def rope_scaling(value, tables: dict[str, np.ndarray], config: dict[str, Any]) -> dict[str, Any] | None:
    """What config.json calls rope_scaling. value(key, default): metadata without the architecture's name."""
    original = value("rope.scaling.original_context_length")
    if "rope_freqs.weight" in tables:
        return _llama3(tables["rope_freqs.weight"], config)
    if "rope_factors_long.weight" in tables:
        names = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
        factors = {ours: [float(f) for f in tables[theirs]] for ours, theirs in names.items()}
        return {"rope_type": "longrope", **factors, "original_max_position_embeddings": original}
    kind, factor = value("rope.scaling.type"), value("rope.scaling.factor")
    if kind in (None, "none") or not factor:
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"unknown rotary scaling {kind!r} in GGUF metadata; known: linear, yarn")
    scaling = {"rope_type": kind, "factor": factor}
    return {**scaling, "original_max_position_embeddings": original} if original else scaling


def _llama3(table: np.ndarray, config: dict[str, Any]) -> dict[str, Any]:
    """The table divides frequencies: 1 for short wavelengths, `factor` for long ones, blended between. Only the
    parameters of the published Llama 3 models are known; a table that they do not give is refused."""
    factor, low, high, original = round(float(table.max())), 1.0, 4.0, 8192
    theta = config.get("rope_theta", 10000.0)
    wavelength = 2 * math.pi * theta ** (np.arange(len(table)) / len(table))
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(expected, table, rtol=1e-3):
        raise CheckpointError("the table rope_freqs of this GGUF file follows no known rotary scaling")
    return {"rope_type": "llama3", "factor": float(factor), "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original}  # fmt: skip
