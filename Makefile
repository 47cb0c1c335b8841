# make test and make demo each set up .venv once; nothing else needs to be installed first but Python and git.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo clean

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

demo: .venv/installed
	$(BIN)/lookalike demo --out demo

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf .venv demo build dist
