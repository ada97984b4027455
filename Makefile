# The front door. Everything that is needed comes from PyPI. Each checkout has its own lab, in .lab whatever a sourced
# openrc says; ports can be set, so that two run side by side:  make up GPUYARD_LAB_PORT_BASE=16000 GPUYARD_PORT=8081

UV ?= $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
PYTHON ?= python3
export GPUYARD_LAB_STATE = $(CURDIR)/.lab
export UV_PROJECT_ENVIRONMENT ?= .venv
RUN = $(UV) run --frozen --all-extras
# As many at a time as there are processors, or WORKERS; a module stays together.
TESTS = $(RUN) pytest -q -n $(or $(WORKERS),auto) --dist loadfile --no-loadscope-reorder --durations 25

.DEFAULT_GOAL := help
.PHONY: help up down test test-fast test-slow test-clock lint fmt bench docs recordings clean

help:  ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.tools/bin/uv:
	$(PYTHON) -m venv .tools && .tools/bin/pip install --quiet --disable-pip-version-check uv==0.13.9

.venv/.synced: $(if $(filter .tools/%,$(UV)),.tools/bin/uv) pyproject.toml uv.lock
	$(UV) sync --frozen --all-extras --quiet
	@touch $@

up: .venv/.synced  ## A real OpenStack with the example site, and the portal; prints its URL and the demo login
	$(RUN) gpuyard lab up

down: .venv/.synced  ## End it; its data stays for the next 'make up'
	$(RUN) gpuyard lab down

test: .venv/.synced lint  ## All tests but the slow ones
	$(TESTS) -m "not slow"

test-slow: .venv/.synced  ## Those that take minutes each: a whole Debian that is prepared, rebooted and undone
	$(TESTS) -m slow

test-fast: .venv/.synced  ## Unit and property tests only
	$(TESTS) -m "not slow" tests/unit

test-clock: .venv/.synced  ## The same on other days: a 29 February at midnight; the hour of a clock change, at a month's end
	$(TESTS) -m "not slow" tests/unit --now 2028-02-29T23:58:00+00:00
	$(TESTS) -m "not slow" tests/unit --now 2027-10-31T00:58:00+00:00

lint: .venv/.synced  ## Format, lint, types, layers, what hypervisors can run
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) vermin --target=3.9- --violations --no-tips --quiet src/gpuyard/host src/gpuyard/model

fmt: .venv/.synced  ## Format, and mend what the linter can
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: .venv/.synced  ## Measure; prints tables
	$(RUN) python -m bench

docs: .venv/.synced  ## Write what docs/reference generates from code
	$(RUN) python -m tools.reference
	$(RUN) python -m tools.examples

recordings: .venv/.synced  ## Make the recordings of the example hosts again, in the virtual hypervisor
	$(RUN) python -m tests.virtual_hypervisor.record_hosts

clean:  ## Remove everything that was built here (end the lab first: make down)
	rm -rf .venv .tools .lab .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
