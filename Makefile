# Two commands: `make demo` trains and shows a result, `make test` runs the tests. Needs Python 3.11+ and nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/.installed
	$(BIN)/llp train --run runs/demo --overwrite --compare supervised

test: .venv/.installed-dev
	$(BIN)/python -m pytest -n 2

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

bench: .venv/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed

clean:
	rm -rf .venv build dist

.venv/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "torchllp needs Python 3.11 or later; say make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@
