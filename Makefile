# make test and make demo each set up .venv once; nothing else needs to be installed first but Python and git.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lint demo clean

test: lint .venv/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: .venv/installed
	$(BIN)/lookalike demo --out demo

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

# The page is tested in a real browser. Where there is none and none can be installed, those tests are skipped, loudly.
.venv/browser: .venv/installed
	for name in chromium chromium-browser google-chrome; do command -v $$name && touch $@ && exit; done; \
	(apt-get update -qq && apt-get install -qq -y chromium) > /dev/null 2>&1 \
		|| echo "there is no Chromium here and it cannot be installed: the tests of the page will be skipped"
	touch $@

clean:
	rm -rf .venv demo build dist
