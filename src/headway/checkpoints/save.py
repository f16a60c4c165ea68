"""Writing a model as Hugging Face transformers reads it: config.json and safetensors, sharded past a size. Atomic."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from headway.errors import CheckpointError


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """A folder to write into, whose files appear in `target` together at the end, or not at all."""
    from safetensors import SafetensorError

    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    except OSError as error:
        raise CheckpointError(f"cannot write to {target}: {error.strerror or error}") from None
    try:
        yield scratch
        if target.exists():
            for file in sorted(scratch.rglob("*")):
                if file.is_file():
                    place = target / file.relative_to(scratch)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, place)
        else:
            os.chmod(scratch, 0o755)
            os.replace(scratch, target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write to {target}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def save_model(model, directory, *, shard_size: int = 5 * 2**30, tokenizer_from: Path | None = None, tokenizer=None) -> None:
    """Writes `model` into `directory`, tied parameters once, at most `shard_size` bytes to a file.

    tokenizer: one to save along. Without it the tokenizer files of `tokenizer_from`, by default the folder that the
    model was loaded from, go along. Raises CheckpointError, leaving nothing half-written, if the folder cannot be written.
    """
    from safetensors.torch import save_file

    tensors = stored(model)
    tokenizer_from = tokenizer_from or getattr(model, "source", None)
    with whole_directory(Path(directory)) as folder:
        config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
        config.pop("torch_dtype", None)  # the older name
        config["dtype"] = str(model.dtype).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        shards = _shards(tensors, shard_size)
        index: dict[str, str] = {}
        if len(shards) == 1:
            save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        else:
            for i, shard in enumerate(shards, 1):
                name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
                save_file(shard, folder / name, metadata={"format": "pt"})
                index.update(dict.fromkeys(shard, name))
            total = sum(t.numel() * t.element_size() for t in tensors.values())
            text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
            (folder / "model.safetensors.index.json").write_text(text + "\n")
        for file in folder.glob("*.safetensors"):  # which the library writes for its owner alone
            shutil.copymode(folder / "config.json", file)
        if tokenizer is not None:
            tokenizer.save(folder)
        elif tokenizer_from is not None:
            for file in tokenizer_files(tokenizer_from):
                place = folder / file.relative_to(tokenizer_from)
                place.parent.mkdir(exist_ok=True)
                shutil.copy(file, place)
    _drop_older(Path(directory), tensors_in={*index.values()} or {"model.safetensors"})


def _drop_older(folder: Path, tensors_in: set[str]) -> None:
    """Removes weights of an earlier save, which would be read in place of (or beside) the new ones."""
    if len(tensors_in) == 1:
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    for file in [*folder.glob("model-*-of-*.safetensors"), folder / "model.safetensors"]:
        if file.name not in tensors_in:
            file.unlink(missing_ok=True)


def stored(model) -> dict[str, Tensor]:
    """Name -> tensor as it goes to disk: contiguous, on the CPU, one name for a tied parameter."""
    tied = model.tied_weights if model.config.tie_word_embeddings else {}
    seen: dict[int, str] = {}
    out = {}
    for name, tensor in model.state_dict().items():
        if name in tied and tensor.data_ptr() == model.get_parameter(tied[name]).data_ptr():
            continue
        if tensor.data_ptr() in seen and tensor.numel():
            tensor = tensor.clone()
        seen[tensor.data_ptr()] = name
        out[name] = tensor.detach().cpu().contiguous()
    return out


def _shards(tensors: dict[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        bytes_ = tensor.numel() * tensor.element_size()
        if size + bytes_ > limit and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += bytes_
    return shards


TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja", "added_tokens.json", "spiece.model", "generation_config.json",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json",
)  # fmt: skip


def tokenizer_files(folder: Path | None) -> list[Path]:
    """The tokenizer files in a folder."""
    return [] if folder is None else [folder / n for n in TOKENIZER_FILES if (folder / n).is_file()]
