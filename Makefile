# Every target sets up .venv by itself; only Python, make and git must be there first.
PYTHON ?= python3
BIN := .venv/bin
STUDIES := $(wildcard studies/pyproject.toml)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: help test test-fast lint format docs results wheel demo clean

help:
	@echo "make test       lint and all tests"
	@echo "make test-fast  the tests that need no browser and no other processes"
	@echo "make lint       ruff, mypy and the import order"
	@echo "make format     let ruff fix and format the code"
	@echo "make docs       build the documentation into site/"
	@echo "make results    write the tables of results/*.yaml into the docs"
	@echo "make wheel      build the wheel into dist/"
	@echo "make demo       train and compare small models, write demo/index.html (minutes)"
	@echo "make clean      delete .venv and everything that was built"

test: lint .venv/browser
	$(PYTEST)

test-fast: .venv/installed
	$(PYTEST) -m "not slow"

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/installed
	$(BIN)/mkdocs build --strict

results: .venv/installed
	$(BIN)/python results/tables.py

wheel: .venv/installed
	$(BIN)/python -m build --wheel

demo: .venv/installed
	$(BIN)/lookalike demo --out demo

.venv/installed: pyproject.toml $(STUDIES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]' $(if $(STUDIES),--editable ./studies)
	touch $@

# The page is tested in a real browser. Without one, and without a way to install it, those tests are skipped.
.venv/browser: .venv/installed
	for name in chromium chromium-browser google-chrome; do command -v $$name && touch $@ && exit; done; \
	(apt-get update -qq && apt-get install -qq -y chromium) > /dev/null 2>&1 \
		|| echo "no Chromium found and it cannot be installed: the tests of the page will be skipped"
	touch $@

clean:
	rm -rf .venv demo site build dist src/*.egg-info studies/*.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis .coverage htmlcov
