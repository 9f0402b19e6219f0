# One command each. `make test` and `make demo` start from a fresh machine.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUNNABLE := $(VENV)/.runnable
WHEELABLE := $(VENV)/.wheelable
RELEASABLE := $(VENV)/.releasable
SOURCES := src tests bench demo scripts deploy
# Tests wait for about half of their time: three at once keep two cores busy. Mutation only computes.
WORKERS ?= 2
CORES ?= 2
ROUNDS ?= 5

# The wheel carries the type checker; without this it asks the network for a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Colours and terminal widths of the caller must not reach recorded output.
export PYTHONUTF8 := 1

.PHONY: help install system test unit lint types contracts fmt proto docs site pages pictures \
        mutants mutants-quick fault-sites attacks mutation mutation-changed shake demo fuzz bench constraints \
        wheel release-check fresh-machine clean
.DEFAULT_GOAL := help

help:
	@echo "make test       everything: install, lint, types, contracts, mutants, changed functions mutated, tests"
	@echo "make demo       a job survives the kill of its node"
	@echo
	@echo "make unit       only the fast tests"
	@echo "make lint       style; make fmt mends what it can"
	@echo "make types      types"
	@echo "make contracts  who may import whom"
	@echo "make mutants    every mutant must be killed; mutants-quick: only by the tests that it names"
	@echo "make fault-sites  every fsync, rename, send, spawn and read fails, or is the last thing that happens, in every way"
	@echo "make attacks    strangers attack every listener, for half a minute each"
	@echo "make mutation   every small change of the pure cores must be noticed (ROOMS=\"kernel policy\": only these)"
	@echo "make mutation-changed  the same for changed functions, for two minutes"
	@echo "make shake      TESTS=tests/…: run them while their processes stand still now and then (ROUNDS=5 SEED=…)"
	@echo "make fuzz       simulate worlds until stopped; failing seeds are kept and replayed by the tests"
	@echo "make bench      the tables of bench/"
	@echo
	@echo "make docs       the pages that are written from the code"
	@echo "make pictures   the pictures of the pages, and the recording of the demo"
	@echo "make site       the pages as a site: build/site/index.html"
	@echo "make pages      everything that the pages tell a person to type is typed, on a real network"
	@echo "make proto      the code of the wire, from node.proto"
	@echo
	@echo "make wheel      dist/holdfast_compute-….whl"
	@echo "make release-check  wheel, pictures, pages, faults, benches, lowest versions, chart, services, image, compose,"
	@echo "                    fresh machine: for real, and slow (CHECKS=\"image compose\": only these)"
	@echo "make fresh-machine  the README's commands on a bare Debian, in namespaces of its own"
	@echo
	@echo "make install    what tests and checks need, into .venv; system: the packages of Debian among it"
	@echo "make constraints  write down what is installed there, as constraints.txt"
	@echo "make clean      remove what was built"

# --- installing -----------------------------------------------------------------------------------

install: $(INSTALLED)

system:
	@bash scripts/system.sh

# What building a wheel needs, and no more.
$(WHEELABLE): constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "setuptools>=77"
	@touch $@

# What Holdfast itself needs, and no more: a stranger who wants to see it waits for nothing else.
$(RUNNABLE): pyproject.toml constraints.txt scripts/system.sh
	@bash scripts/system.sh --to-run
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Holdfast needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "setuptools>=77"
	@# By the name of releases before this one, its files would lie among ours.
	@$(BIN)/python -m pip uninstall --quiet --yes --disable-pip-version-check holdfast 2>/dev/null
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation --editable .
	@touch $@

$(INSTALLED): $(RUNNABLE)
	@bash scripts/system.sh
	@echo "installing what tests and checks need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation --editable ".[dev]"
	@touch $@

constraints:
	@{ echo '# What is installed, by name and version. Written by `make constraints`.'; \
	   $(BIN)/python -m pip freeze --all --exclude-editable | grep -vi -e '^pip==' -e '^#' | LC_ALL=C sort -f; \
	 } > constraints.txt.new && mv constraints.txt.new constraints.txt

# --- checking -------------------------------------------------------------------------------------

# Pytest comes last, so that its closing line is the last thing one sees. It also compares generated code and
# pages with their sources (tests/test_tidy.py and the tests of the wire).
test: system install lint types contracts mutants-quick mutation-changed
	@$(BIN)/python -m pytest -v -p no:faker -p tests.plugins.alone -p tests.plugins.crashes -p tests.plugins.status \
	  -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --durations 15 --status docs/status.md

unit: install
	@$(BIN)/python -m pytest -v tests/unit tests/kernel tests/test_tidy.py

lint: install
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES)

types: install
	@$(BIN)/pyright --level error

contracts: install
	@$(BIN)/lint-imports --no-cache --no-logo

fmt: install
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

proto: install
	@$(BIN)/python scripts/proto.py

pictures: install
	@$(BIN)/python scripts/pictures.py --demo

docs: install
	@$(BIN)/python scripts/docs.py

# Fetches nothing; the notice it would print is about a version that is not ours.
site: install
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "built build/site/index.html"

# `make test` runs the README; this, every page.
pages: install
	@HOLDFAST_TEST_ALL_PAGES=1 $(BIN)/python -m pytest -v -p no:faker tests/acceptance/test_docs_run.py

mutants: install
	@$(BIN)/python tests/mutants/run.py

mutants-quick: install
	@$(BIN)/python tests/mutants/run.py --quick

fault-sites: install
	@HOLDFAST_TEST_ALL_FAULTS=1 $(BIN)/python -m pytest -v -p no:faker tests/faults/test_fault_sites.py tests/faults/test_backups.py

attacks: install
	@HOLDFAST_ATTACK_S=30 $(BIN)/python -m pytest -v -p no:faker tests/faults/test_attacks.py

# Resumable: what has a verdict for its code and its tests is not tried again.
mutation: install
	@$(BIN)/python -m tests.mutation --workers $(CORES) $(ROOMS)

mutation-changed: install
	@$(BIN)/python -m tests.mutation --changed --seconds 120 --workers $(CORES)

shake: install
	@test -n "$(TESTS)" || { echo "which tests? make shake TESTS=tests/integration/test_agent.py"; exit 1; }
	@$(BIN)/python scripts/shake.py --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(TESTS)

# --- running --------------------------------------------------------------------------------------

demo: $(RUNNABLE)
	@$(BIN)/python demo/failover.py

fuzz: install
	@$(BIN)/python -m holdfast.sim fuzz

bench: install
	@$(BIN)/python -m bench

# --- shipping -------------------------------------------------------------------------------------

# Not from this tree: what an earlier build left here would be packed as well.
wheel: $(WHEELABLE)
	@rm -rf build/wheel && mkdir -p build/wheel dist
	@cp -R pyproject.toml README.md LICENSE src build/wheel/ && rm -rf build/wheel/src/*.egg-info
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --wheel-dir dist build/wheel
	@ls dist/*.whl

$(RELEASABLE): $(INSTALLED)
	@bash scripts/system.sh --to-release
	@echo "installing what checks a release"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation --editable ".[release]"
	@touch $@

release-check: $(RELEASABLE)
	@$(BIN)/python scripts/release_check.py $(CHECKS)

fresh-machine:
	@bash scripts/fresh_machine.sh

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +
