"""`headway.load`: a model from whatever a reference points to."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from headway.checkpoints.fit import fit
from headway.checkpoints.gguf import GGUFFile
from headway.checkpoints.resolve import Source, resolve
from headway.checkpoints.tensors import check_finite, read_tensors
from headway.errors import CheckpointError, HeadwayError, InputError
from headway.models.registry import resolve as resolve_class


def load(
    ref: str | Path,
    task: str | None = None,
    attention: str = "auto",
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    num_labels: int | None = None,
):
    """The model behind `ref`, in eval mode.

    Args:
        ref: folder or file in Hugging Face layout, `.gguf` file, `package:NAME/path`, or hub id (with `revision`).
        task: base, causal-lm, masked-lm, sequence-classification, token-classification, question-answering or
            multiple-choice; None takes the architecture that the checkpoint names.
        attention: backend name or "auto"; may be changed later with `model.attention.use(...)`.
        dtype: of the weights; None keeps that of the checkpoint. device: None is the CPU.
        allow_pickle: also read torch pickles, with weights_only=True.
        num_labels: classes of a new classification head.

    Raises: CheckpointError for a reference that is no model, and for damaged or ill-fitting checkpoints; HeadwayError for
    an unknown architecture or task; InputError for a device or num_labels that cannot be; ValueError for an unknown backend.
    """
    if attention != "auto":
        from headway.attention import get_backend

        get_backend(attention)
    if num_labels is not None and num_labels < 1:
        raise InputError(f"num_labels must be at least 1, {num_labels} was given")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # what PyTorch says depends on how it was built
        raise InputError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    source = resolve(ref, revision, allow_pickle)
    if source.weights is None:
        raise CheckpointError(
            f"'{ref}' has a config.json but no weights; accepted are model.safetensors and its shards, or .gguf"
        )
    opened = GGUFFile(source.weights) if source.is_gguf else None
    raw = opened.config() if opened else read_config(source)
    if raw.get("quantization_config"):
        method = dict(raw["quantization_config"]).get("quant_method", "an unknown method")
        raise CheckpointError(
            f"'{ref}' is quantised with {method}; Headway reads plain safetensors, and GGUF for quantised weights"
        )
    if num_labels is not None:
        raw = {**raw, "id2label": {i: f"LABEL_{i}" for i in range(num_labels)}}
    config_class, model_class = resolve_class(raw, task)
    try:
        config = config_class.from_dict(raw)
        with torch.device("meta"):
            model = model_class(config)
    except HeadwayError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the config of '{ref}' describes no model that can be built ({type(error).__name__}: {error})"
        ) from error
    tensors = opened.tensors() if opened else read_tensors(source.weights, allow_pickle)
    check_finite(tensors, f"{ref} is damaged")
    wanted = _dtype(dtype)
    if wanted is not None:
        tensors = {n: t.to(wanted) if t.is_floating_point() else t for n, t in tensors.items()}
        check_finite(tensors, f"{ref} does not fit into {wanted}, take float32 or bfloat16")
    stored_as = (raw.get("architectures") or [None])[0]
    if task is None and stored_as not in (None, model_class.__name__):
        warnings.warn(
            f"{ref} is a {stored_as}, which Headway lacks; loaded as {model_class.__name__}; task= chooses another",
            stacklevel=2,
        )
    fit(model, tensors, str(ref), new_head=stored_as != model_class.__name__ or num_labels is not None)
    if device is not None:
        model.to(device)
    model.attention.use(attention)
    model.source = source.folder
    return model.eval()


def read_config(source: Source) -> dict[str, Any]:
    """config.json of a checkpoint; CheckpointError if it is missing or damaged."""
    path = source.folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"'{source.folder}' is no model: it has no config.json") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds no configuration")
    return config


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    found = getattr(torch, names.get(dtype, dtype), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"unknown dtype {dtype!r}; known: {', '.join(names)} and torch's floating dtypes")
    return found
