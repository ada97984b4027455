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
.PHONY: help up down test test-fast test-slow test-clock lint fmt bench docs docs-site wheel pictures recordings clean test-machine test-shares test-moves test-month test-releases test-deploy test-driver

help:  ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.tools/bin/uv:
	$(PYTHON) -m venv .tools && .tools/bin/pip install --quiet --disable-pip-version-check uv==0.13.9

.venv/.synced: $(if $(filter .tools/%,$(UV)),.tools/bin/uv) pyproject.toml lab/pyproject.toml uv.lock
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

test-machine: .venv/.synced  ## What boots whole Debians: the portal and its helpers as services, a runner, a prepared host; half an hour
	GPUYARD_TEST_MACHINE=1 $(TESTS) tests/virtual

test-shares: .venv/.synced  ## All that servers with shares of GPUs do on the lab; three to six minutes
	GPUYARD_TEST_SHARES=1 $(TESTS) tests/integration/test_shared_cards.py

test-month: .venv/.synced  ## A month of use on the lab by a clock that is moved; its report against Nova's records; five minutes
	GPUYARD_TEST_MONTH=1 $(TESTS) tests/integration/test_month.py

test-moves: .venv/.synced  ## Servers leave hosts of the lab, by a command that is killed at each step; five minutes
	GPUYARD_TEST_MOVES=1 $(TESTS) tests/integration/test_host_moves.py

test-releases: .venv/.synced  ## Labs of the releases of OpenStack from 2024.1 on: exercise and booking; some minutes each
	GPUYARD_TEST_RELEASES=1 $(TESTS) tests/integration/test_release_labs.py

test-deploy: .venv/.synced  ## Three bare machines, prepared, rebooted and deployed to as far as no container is needed
	GPUYARD_TEST_DEPLOY=1 $(TESTS) tests/integration/test_deploy.py tests/virtual/test_deploy.py

test-driver: .venv/.synced  ## An image with NVIDIA's driver is built of Debian's packages and booted; ten minutes
	GPUYARD_TEST_DRIVER=1 $(TESTS) tests/integration/test_driver_image.py

test-dashboard: .venv/.synced  ## Horizon from its released wheel through the gateway, on the lab; three minutes
	GPUYARD_TEST_DASHBOARD=1 $(TESTS) tests/integration/test_gateway_dashboard.py

test-fast: .venv/.synced  ## Unit and property tests only
	$(TESTS) -m "not slow" tests/unit

# Of the day only what reckons in time can know, of a clock change at a month's end what knows zones or months; and not what is
# hostile or slow whatever the day.
OF_ZONES = account or budget or calendar or clock or quiet or recurrence or series or tariff or zone
OF_THE_CLOCK = $(OF_ZONES) or booking or feed or history or ledger or message or time or usage
NOT_OF_THE_CLOCK = attack or authorization or docs or fuzz or gateway or lint or login or migration or portal or runner or serving

test-clock: .venv/.synced  ## The same on other days: a 29 February at midnight; the hour of a clock change, at a month's end
	$(TESTS) -m "not slow" tests/unit --now 2028-02-29T23:58:00+00:00 -k "($(OF_THE_CLOCK)) and not ($(NOT_OF_THE_CLOCK))"
	$(TESTS) -m "not slow" tests/unit --now 2027-10-31T00:58:00+00:00 -k "($(OF_ZONES)) and not ($(NOT_OF_THE_CLOCK))"

lint: .venv/.synced  ## Format, lint, types, layers, what hypervisors can run
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) vermin --target=3.9- --violations --no-tips --quiet src/gpuyard/host src/gpuyard/model src/gpuyard/guest src/gpuyard/images/guest

fmt: .venv/.synced  ## Format, and mend what the linter can
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: .venv/.synced  ## Measure; prints tables (GPUYARD_BENCH_SMALL=1: everything small, minutes)
	$(RUN) python -m bench

docs: .venv/.synced  ## Write what docs/reference generates from code
	$(RUN) python -m tools.reference
	$(RUN) python -m tools.examples

docs-site: .venv/.synced  ## The documentation as a site, in dist/docs and in the portal at /docs
	$(RUN) python -m tools.docs_site

wheel: docs-site  ## What 'pip install' takes, in dist: gpuyard with the documentation in it, and the lab
	$(UV) build --quiet --wheel --all-packages --out-dir dist

pictures: .venv/.synced  ## Take the pictures of a month of use again, on a lab whose clock is moved
	$(RUN) python -m tools.pictures

recordings: .venv/.synced  ## Make the recordings of the example hosts again, in the virtual hypervisor
	$(RUN) python -m tests.virtual_hypervisor.record_hosts

clean:  ## Remove everything that was built here (end the lab first: make down)
	rm -rf .venv .tools .lab .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist src/gpuyard/web/documentation.tar.xz
