"""References into installed packages: found by their own files, never outside them, never imported."""

from __future__ import annotations

import sys

import pytest

from headway.checkpoints.resolve import resolve
from headway.errors import CheckpointError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a script, as pip records it, that must not be imported; and a model beside it."""
    site = tmp_path / "lib/site"
    for name in ("tiny_model/weights/model.safetensors", "tiny_model/weights/config.json", "other/model.safetensors"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("")
    (site / "tiny_model/__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "bin/weights").mkdir(parents=True)
    info = site / "tiny_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    recorded = ["../../bin/weights/run", "tiny_model/__init__.py", "tiny_model/weights/config.json", f"{info.name}/METADATA"]
    (info / "RECORD").write_text("".join(f"{n},,\n" for n in recorded))
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.parametrize("inside", ["weights", "weights/", "tiny_model/weights", "weights/model.safetensors"])
def test_files_of_a_package_with_scripts_are_found(package, inside):
    found = resolve(f"package:tiny-model/{inside}")
    assert found.weights == package / "tiny_model/weights/model.safetensors"
    assert "tiny_model" not in sys.modules


def test_what_is_outside_a_package_is_not_read(package):
    for inside in ("../other", "weights/../../other", str(package / "other")):
        with pytest.raises(CheckpointError, match="must stay inside"):
            resolve(f"package:tiny-model/{inside}")
    for inside in ("other", "absent", "tiny_model-1.0.dist-info/METADATA"):
        with pytest.raises(CheckpointError, match="tiny-model 1.0 holds no"):
            resolve(f"package:tiny-model/{inside}")
