"""Shared by all tests: two workers on two cores take one thread each, and every test starts from one seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("tests", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.load_profile("tests")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder of real weights; `make models` fills it, and a test that needs it fails without."""
    folder = ROOT / "models"
    assert (folder / "smollm2-135m").is_dir(), "run `make models` first"
    return folder
