# The environment lives in .venv; PYTHON chooses the interpreter that creates it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test certificates deploy-check bench bench-clustering clean

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: install
	$(BIN)/python -m pina_app run --preset demo

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

certificates: install
	$(BIN)/python -m deploy keys

deploy-check: install
	$(BIN)/python -m deploy check

bench: install
	$(BIN)/python benchmarks/round.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/server_memory.py

bench-clustering: install
	$(BIN)/python benchmarks/clustering.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist
