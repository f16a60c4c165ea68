"""Reading tensors: safetensors, sharded or not, memory-mapped; pickles only if allowed, never running their code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from headway.checkpoints.resolve import PICKLES
from headway.errors import CheckpointError


def read_tensors(path: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """All tensors of a checkpoint file or index. Raises CheckpointError for damaged or missing files."""
    tensors: dict[str, Tensor] = {}
    for file in _files(path):
        for name, tensor in _read(file, allow_pickle):
            if name in tensors:
                raise CheckpointError(f"{path.name}: tensor '{name}' stands in two shards")
            tensors[name] = tensor
    return tensors


def _files(path: Path) -> list[Path]:
    if not path.name.endswith(".index.json"):
        return [path]
    try:
        index = json.loads(path.read_text())["weight_map"]
        names = {Path(shard).name for shard in index.values()}  # shards lie beside their index, nowhere else
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(f"{path}: this index of shards cannot be read ({error})") from None
    files = sorted(path.parent / name for name in names)
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        raise CheckpointError(f"{path.parent}: missing shards: {', '.join(missing)}; copy them beside {path.name}")
    return files


def _read(file: Path, allow_pickle: bool) -> Iterator[tuple[str, Tensor]]:
    if file.suffix in PICKLES:
        yield from _unpickle(file, allow_pickle).items()
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read; it may be cut short or damaged ({error})") from None


def _unpickle(file: Path, allow_pickle: bool) -> dict[str, Tensor]:
    loaded = load_pickle(file, allow_pickle)
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    tensors = {k: v for k, v in loaded.items() if isinstance(v, Tensor)} if isinstance(loaded, dict) else {}
    if not tensors:
        raise CheckpointError(f"{file}: holds no dictionary of tensors")
    return tensors


def load_pickle(file: Path, allow_pickle: bool):
    """What a torch pickle holds, loaded with weights_only=True: it can make tensors and containers, nothing else."""
    if not allow_pickle:
        raise CheckpointError(
            f"{file}: pickle checkpoints are not read by default; pass allow_pickle=True (they are loaded with weights_only)"
        )
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{file}: cannot be loaded as plain weights ({str(error).strip().splitlines()[0][:200]})"
        ) from None


def check_finite(tensors: dict[str, Tensor], what: str) -> None:
    """Raises CheckpointError naming the tensors that hold NaN or infinity. what: what that means for the reader."""
    bad = [n for n, t in tensors.items() if t.is_floating_point() and not bool(torch.isfinite(t.sum(dtype=torch.float32)))]
    bad = [n for n in bad if not bool(torch.isfinite(tensors[n]).all())]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise CheckpointError(f"{what}: NaN or infinite values in {', '.join(bad[:5])}{more}")
