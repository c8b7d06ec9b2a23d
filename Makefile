# Everything is set up on first use: a virtual environment in .venv, and for the tests a folder of wheels in .wheelhouse.
# Tried by running, for a version manager may have a command of that name that only says which versions it lacks.
PYTHON ?= $(or $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done),python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: help demo test test-engines check format bench schema docs lock clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: .venv/.installed  ## Attach this machine, serve a toy model, measure it, let it go
	@RIGBENCH_HOME="$${RIGBENCH_HOME:-$(CURDIR)/.cache/state}" RIGBENCH_RIG_HOME="$${RIGBENCH_RIG_HOME:-$(CURDIR)/.cache/rig}" \
		$(BIN)/rigbench demo $(ARGS)

test: .venv/.installed .wheelhouse/.filled  ## Run the tests
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-engines: .venv/.installed .wheelhouse/.filled  ## Run the tests that need large engines or models
	$(BIN)/python -m pytest -m engines -o timeout=3600 $(ARGS)

check: .venv/.installed  ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: .venv/.installed  ## Bring the code into form
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format .

bench: .venv/.installed .wheelhouse/.filled  ## Measure what the product itself costs
	$(BIN)/python -m tests.bench $(ARGS)

schema: .venv/.installed  ## Write evals/report.schema.json anew
	$(BIN)/python -m evals schema > evals/report.schema.json.new
	mv evals/report.schema.json.new evals/report.schema.json

docs: .venv/.installed  ## Write the README's tool table anew
	$(BIN)/python -m tests.tool_table README.md

lock: .venv/.installed  ## Pin the newest versions that pyproject.toml allows
	$(PIP) install uv
	$(BIN)/uv pip compile -q --upgrade --generate-hashes --no-emit-index-url --universal --python-version 3.11 \
		--no-header --no-annotate --group dev pyproject.toml -o requirements.lock
	sed -n '/# What runs on a rig/,/# The server/s/^ *"\([^"]*\)",$$/\1/p' pyproject.toml > .venv/rig.in
	$(BIN)/uv pip compile -q --upgrade --generate-hashes --no-emit-index-url --universal --python-version 3.11 \
		--no-header --no-annotate -c requirements.lock .venv/rig.in -o rig-requirements.lock

clean:  ## Remove what the targets above made
	rm -rf .venv .wheelhouse .cache .pytest_cache .ruff_cache

.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "rigbench needs Python >= 3.11; $(PYTHON) is older. Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
		echo "The venv module is missing: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@echo "installing the pinned packages into .venv"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.wheelhouse/.filled: rig-requirements.lock rigs/engines/llamacpp.py tests/wheelhouse.py .venv/.installed
	@echo "filling .wheelhouse for the tests that install"
	@$(BIN)/python -m tests.wheelhouse .wheelhouse
	@touch $@
