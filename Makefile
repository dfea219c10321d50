# Everything runs from here on a fresh machine with Python 3.11+, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_JOBS ?= auto

.PHONY: setup test test-slow mutate check lint types doctest study docs bench bench-accuracy clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("onedraw needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; say make PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing onedraw and what it needs into $(VENV) (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $(STAMP)

# Programs that the tests start, some two hundred, begin sooner with byte code beside the sources.
test test-slow: export PYTHONDONTWRITEBYTECODE =

test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m slow

# Plants the errors of tests/planted.toml (some 8 s each); ARGS are words of their names or files, or --jobs 4.
mutate: $(STAMP)
	$(BIN)/python -m tests.plant $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/mypy

doctest: $(STAMP)
	$(BIN)/python -m pytest --quiet --doctest-modules --doctest-glob="*.md" src README.md

check: lint types doctest test

study: $(STAMP)
	$(BIN)/onedraw study --quick

docs: $(STAMP)
	@$(BIN)/python -c "import furo, myst_parser, sphinx" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env --builder html docs build/docs
	@echo "Open build/docs/index.html"

# ARGS names one, as in make bench ARGS="calibration --jobs 8".
bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

bench-accuracy: $(STAMP)
	@$(BIN)/python -c "import sklearn" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -m benchmarks.accuracy $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
