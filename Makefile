PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install -q -c constraints.txt

.PHONY: demo test test-slow lint models bench docs clean

# Created once, and again whenever the dependencies change.
$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -U pip
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

models: $(VENV)/.ready
	$(BIN)/python -m headway.checkpoints.fetch models

demo: models
	$(BIN)/python -m headway.cli.demo models

test: models lint
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-slow: models
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: models
	$(PIP) -r benchmarks/requirements.txt
	$(BIN)/python benchmarks/attention.py

docs: $(VENV)/.ready
	$(PIP) -e '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache
