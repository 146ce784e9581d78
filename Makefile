# Set-up, serving, checks. `make setup` is done at most once per change of pyproject.toml.
.DEFAULT_GOAL := help

# The first of these that is new enough; macOS's own python3 is not.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
PORT ?= 8000
ARGS ?=
HISTORIES ?= 100000
SECONDS ?= 600
SEED ?= 1

BIN := .venv/bin
PACKAGES := protocol api_server coordinator engine_core deploy benchmarks

.PHONY: help setup setup-dev serve test simulate chaos chaos-ci reliability check format lint types bench soak clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: .venv/.runtime ## What it takes to serve: .venv, dependencies, OpenBLAS on Linux

setup-dev: .venv/.dev ## The same, and what it takes to test

# pip comes last when a virtual environment is made: where it is, the rest is.
.venv/bin/pip:
	@test -n "$(PYTHON)" || { echo "Shoal needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.runtime: pyproject.toml deploy/openblas.sh deploy/xgrammar.sh | .venv/bin/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[engine,grammar,bench]'
	bash deploy/xgrammar.sh
	bash deploy/openblas.sh
	touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[engine,grammar,dev]'
	touch $@

serve: setup ## Serve the demo model on PORT (8000); more options in ARGS, e.g. ARGS="--engines 1"
	$(BIN)/shoal serve --port $(PORT) $(ARGS)

test: setup-dev ## Run all tests
	$(BIN)/shoal pull demo > /dev/null
	HF_HUB_OFFLINE=1 env $$($(BIN)/python -m deploy.machine) $(BIN)/pytest $(ARGS)

simulate: setup-dev ## Simulate HISTORIES (100000) clusters in which everything dies, and check what is promised
	PYTHONPATH=tests/simulation $(BIN)/python tests/simulation/protocol_simulation.py --histories $(HISTORIES)

chaos: setup-dev ## Strike a real cluster under load at random for SECONDS (600), and compare every stream
	PYTHONPATH=tests/cluster:tests/chaos $(BIN)/python tests/chaos/random_chaos.py --seconds $(SECONDS) --seed $(SEED)

chaos-ci: ## The same for 3 minutes
	$(MAKE) chaos SECONDS=180

reliability: setup-dev ## Measure what a client notices of deaths and of overload; prints the table of docs/reliability.md
	PYTHONPATH=tests/cluster:tests/chaos:tests/unit/coordinator $(BIN)/python tests/chaos/reliability.py

check: format lint types test ## What CI runs: format, lint, types, tests

format: setup-dev ## Fail if the formatter would change something
	$(BIN)/ruff format --check .

lint: setup-dev ## Lint
	$(BIN)/ruff check .

types: setup-dev ## Type-check
	$(BIN)/mypy

bench: setup-dev ## Load a running server (URL in ARGS, see shoal bench serve --help)
	$(BIN)/shoal bench serve $(ARGS)

soak: setup-dev ## Overload the demo model for 20 minutes and watch its memory (shorter: ARGS="--minutes 2")
	$(BIN)/shoal pull demo > /dev/null
	HF_HUB_OFFLINE=1 $(BIN)/python tests/cluster/memory_soak.py $(ARGS)

clean: ## Remove .venv, caches, build results
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist bench-results
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
