# Everything runs in a private virtual environment; nothing is installed outside this folder.
# Choose another Python (3.11 or newer) with, for example: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test slow lint bench clean

demo: .venv/demo.installed
	$(BIN)/python examples/char_gpt.py

test: .venv/test.installed
	$(BIN)/python -m pytest -n 2

slow: .venv/test.installed
	$(BIN)/python -m pytest -n 2 -m slow

lint: .venv/test.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/bench.installed
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv .venv

# One stamp per extra: reinstalled only when the dependencies change.
.venv/%.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@
