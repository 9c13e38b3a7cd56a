# Each target does its own set-up, on a machine that has Python and nothing else. Stamps in the virtual environment
# make a repeated set-up instant, and a changed lock file redoes it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The servers that `make test` gets and runs against. A test whose server is missing fails.
SERVERS ?= redis valkey etcd consul postgresql pgbouncer zookeeper mariadb mysql chromium promtool
PYTEST_ARGS ?=
# Most tests wait for leases to run out, so three share two cores at little cost; a file stays with one worker.
WORKERS ?= 3
# The tests start hundreds of processes, each of which would compile Leasehold anew where Python may keep nothing.
export PYTHONDONTWRITEBYTECODE :=
BENCH_ARGS ?=
PEERS_ARGS ?=
# What `make soak` runs on, and for how long on each.
SOAK_ENGINES ?= sqlite redis valkey redlock postgresql postgresql+session mariadb mariadb+session mysql mysql+session etcd consul zookeeper
SOAK_FOR ?= 1h
# How many simulated histories `make sim` explores, and of which engines a tenth as many.
N ?= 20000
SIM_ENGINES ?= etcd zookeeper consul postgresql mysql postgresql+session mysql+session

UV_VERSION := 0.13.7
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --system-certs --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test nightly lint format bench docs docs-serve sim peers planted setup servers lock clean soak

help:  ## show this help
	@echo "Leasehold: locks that stay correct when a holder stalls. Targets:"
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1 \t\2/' | expand -t 20

demo: $(VENV)/.ready  ## watch a stalled holder's write being refused (no server needed)
	@$(BIN)/python -m leasehold.demo

test: $(VENV)/.ready-dev  ## get the servers, lint, check types, run the tests
	@$(MAKE) --no-print-directory -j 2 servers lint
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not nightly" $(PYTEST_ARGS)

nightly: $(VENV)/.ready-dev servers  ## run the tests that take longest, which `make test` leaves out
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m nightly $(PYTEST_ARGS)
	@LEASEHOLD_TEST_MYSQL_BY=mysql $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -k "mysql or mariadb" \
		tests/fences tests/patterns tests/telemetry $(PYTEST_ARGS)

lint: $(VENV)/.ready-dev  ## ruff and mypy
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(VENV)/.ready-dev  ## let ruff format and fix what it can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

bench: $(VENV)/.ready-dev servers  ## measure beside peers and the raw cost of each engine
	@LEASEHOLD_SERVERS=.servers $(BIN)/leasehold bench $(BENCH_ARGS)

docs: $(VENV)/.ready-dev  ## build the documentation into site/
	@$(BIN)/python tools/reference_pages.py
	@$(BIN)/zensical build --clean --strict

docs-serve: $(VENV)/.ready-dev  ## serve the documentation while it is being written
	@$(BIN)/python tools/reference_pages.py
	@$(BIN)/zensical serve

sim: $(VENV)/.ready-dev  ## explore N simulated histories on all cores, and a tenth as many of each engine (make sim N=100000)
	@$(BIN)/python -m pytest -q tests/sim/test_histories.py tests/sim/test_engines.py -k once_failed
	@$(BIN)/python -m leasehold.sim --histories $(N)
	@for engine in $(SIM_ENGINES); do \
		$(BIN)/python -m leasehold.sim --engine $$engine --histories $$(( $(N) / 10 + 1 )) || exit 1; \
	done
	@$(BIN)/python -m leasehold.sim.quorum --histories $$(( $(N) / 10 + 1 ))
	@$(BIN)/python -m leasehold.sim.partitions --histories $$(( $(N) / 100 + 1 ))

peers: $(VENV)/.ready-dev servers  ## put peers to the same faults as Leasehold, and make the tables of docs/peers.md
	@$(PIP_INSTALL) --no-build-isolation --editable '.[peers]'
	@LEASEHOLD_SERVERS=.servers $(BIN)/python -m leasehold.chaos.peers --data docs/data/peers.json --into docs/peers.md $(PEERS_ARGS)

planted: $(VENV)/.ready-dev servers  ## have the chaos tester find every bug that is planted for it
	@$(BIN)/python -m pytest -s tests/chaos/test_planted.py

soak: $(VENV)/.ready-dev servers  ## an hour of random faults on each engine, with reports in out/soak
	@failed=0; for engine in $(SOAK_ENGINES); do \
		case $$engine in sqlite) on= ;; redlock|etcd|consul|zookeeper) on="--start $$engine --members 3" ;; *) on="--start $$engine" ;; esac; \
		LEASEHOLD_SERVERS=.servers $(BIN)/leasehold chaos $$on --faults random --for $(SOAK_FOR) --report out/soak/$$engine \
			|| failed=1; \
	done; exit $$failed

setup: $(VENV)/.ready-dev  ## only prepare the virtual environment

servers: $(VENV)/.ready  ## only get the servers that the tests need
	@$(if $(strip $(SERVERS)),$(BIN)/python tools/servers.py ensure $(SERVERS),:)

lock: $(VENV)/.ready  ## pin every dependency anew
	@$(PIP_INSTALL) uv==$(UV_VERSION)
	@$(COMPILE) --upgrade --group build --output-file requirements.lock
	@$(COMPILE) --upgrade --group build --group dev --group docs --all-extras --constraints requirements.lock \
		--output-file requirements-dev.lock

clean:  ## remove everything that the targets made, except downloaded servers
	rm -rf $(VENV) site dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp, since $(BIN)/python is a link whose date is that of the system's Python.
$(VENV)/.created:
	@tools/venv.sh $(PYTHON) $(VENV)
	@touch $@

# What the package itself needs; enough for the demo, and quick.
$(VENV)/.ready: $(VENV)/.created requirements.lock pyproject.toml
	@echo "Installing leasehold into $(VENV)"
	@$(PIP_INSTALL) --require-hashes -r requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready requirements-dev.lock
	@echo "Installing the development tools into $(VENV)"
	@$(PIP_INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@
