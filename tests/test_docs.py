"""Every Python example in the documentation of the models runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parents[1] / "docs" / "models").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_example_of_each_family_runs(page, capsys):
    found = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert found
    for code in found:
        exec(compile(code, str(page), "exec"), {})
    assert "attention: " in capsys.readouterr().out
