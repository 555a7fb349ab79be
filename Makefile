PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
WEB    := $(VENV)/.ready-web
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help quickstart serve compare rivals test test-slow lint format bench bench-full results clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

quickstart: $(READY)  ## train on the bundled drawings, evaluate, save two plots (minutes)
	$(BIN)/tapnet quickstart

serve: $(WEB)  ## the page on which to teach a classifier, in your browser
	$(BIN)/tapnet serve

compare: $(READY)  ## the quickstart's recipe with Prototypical Networks beside TapNet, on the same episodes
	$(BIN)/tapnet quickstart --out runs/quickstart
	$(BIN)/tapnet quickstart --method protonet --out runs/quickstart-protonet
	$(BIN)/tapnet compare runs/quickstart runs/quickstart-protonet --shot 1
	$(BIN)/tapnet compare runs/quickstart runs/quickstart-protonet --shot 5

rivals: $(READY)  ## train every method on Omniglot (tapnet data download omniglot), compare, write runs/rivals.html
	$(BIN)/tapnet sweep sweeps/rivals.yaml $(SWEEP)
	$(BIN)/tapnet compare $$($(BIN)/tapnet sweep sweeps/rivals.yaml --list) \
		--way 5 --shot 1 --query 5 --episodes 1000 --out runs/rivals.html

test: lint  ## lint, types and tests
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: $(DEV)  ## the tests that take minutes
	$(BIN)/pytest -n 2 --dist loadfile -m slow

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)  ## speed, as ratios side by side in one run, and how costs grow
	$(BIN)/python benchmarks/run.py

bench-full: $(DEV)  ## the slow ones, too
	$(BIN)/python benchmarks/run.py --full

results: $(READY)  ## RESULTS.md and results/README.md from the files in results/
	$(BIN)/python tools/write_results.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tapnet needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) ".[figures]"
	touch $@

$(WEB): $(READY)
	$(INSTALL) ".[web,photos,onnx]"
	touch $@

$(DEV): $(READY)
	$(INSTALL) ".[dev,tensorboard]"
	touch $@
