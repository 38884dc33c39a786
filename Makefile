# Needs Python 3.11 or newer and make. Everything else goes into .venv.
#
#   make demo        verify real attention layers, and one that is broken
#   make test        lint, format, types, tests
#   make test-all    the same with the slow tests
#   make texts       collect the texts, report what has no Chinese translation, compile; write docs/faults.md
#   make format      put the code into shape
#   make clean       remove .venv and caches
#
# TORCH_INDEX=URL names an extra package index for torch, for instance one with CPU-only builds.

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo test test-all texts format clean
.DEFAULT_GOAL := demo

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headwise needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch first and alone: it is by far the largest, and its index may be another one.
$(VENV)/torch: $(VENV)/created constraints.txt
	$(PIP) install --quiet torch==2.13.0 -c constraints.txt $(INDEX)
	@touch $@

$(VENV)/hf: $(VENV)/torch pyproject.toml constraints.txt
	$(PIP) install --quiet -e '.[hf]' -c constraints.txt $(INDEX)
	@touch $@

$(VENV)/dev: $(VENV)/torch pyproject.toml constraints.txt
	$(PIP) install --quiet -e '.[dev]' -c constraints.txt $(INDEX)
	@touch $@ $(VENV)/hf

demo: $(VENV)/hf
	@$(BIN)/python -m headwise.demo

test: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

texts: $(VENV)/dev
	$(BIN)/python scripts/texts.py update
	$(BIN)/python scripts/docs.py write
	$(BIN)/python scripts/texts.py check

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
