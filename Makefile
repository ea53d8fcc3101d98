# What each target needs it installs itself: a virtual environment in .venv from the package index, and (root needed) Debian
# packages for the guests: see integration/guest/packages.py for the list.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Two take the guests' lanes; one more than there are processors fills what those leave idle.
PROCESSES := $(shell echo $$(($$(nproc) < 8 ? $$(nproc) + 1 : 8)))
AT_ONCE := --numprocesses $(PROCESSES) --dist loadscope

# Tests start many interpreters: bytecode is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: all demo test test-all test-unit test-vectors test-guests soak guest guest-packages install uninstall
.PHONY: format reference shown docs screens
.PHONY: bench bench-churn bench-costs bench-guest bench-matrix bench-docs figures
.PHONY: dist deb clean

all: test

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

guest-packages: $(VENV)/.ready
	$(BIN)/python -m integration.guest.packages

# The main job on a real kernel: pods pinned, a pod deleted, the agent restarted, in a guest.
demo: guest-packages
	$(BIN)/python -m integration.demo

# Linters, types, import contracts, unit tests, and the main job in one guest, in at most eight minutes on two processors, and five
# in later runs. It leaves out three things, which `make test-all` has: tests that are marked `whole`, as each takes more than three
# processor seconds; three quarters of the examples, recorded decisions and crash points (the first lines tell the seed of the
# quarter); and the tests in guests that aren't marked `main_job`.
test: guest-packages
	$(PYTEST) $(AT_ONCE) tests integration

# Every test but the long forms in guests, in some 27 minutes on two processors: in at most four guests (a failure takes one more), two
# at a time.
test-all: guest-packages
	$(PYTEST) $(AT_ONCE) --all tests integration

test-unit: $(VENV)/.ready
	$(PYTEST) $(AT_ONCE) tests

# Every recorded decision of kubelet.
test-vectors: $(VENV)/.ready
	$(PYTEST) $(AT_ONCE) --all tests/core/test_vectors.py

# The integration tests, those in their long form (`long` is what it is marked in integration/) among them.
test-guests: guest-packages
	$(PYTEST) integration --long

# Hours. The fuzzing goes on where it was left: ten million inputs in all, then none.
soak: guest-packages
	NODEAGENT_KEEP_FIGURES=1 $(PYTEST) tests/daemon/test_load.py tests/daemon/test_churn.py --host-soak
	NODEAGENT_KEEP_FIGURES=1 $(BIN)/python -m tests.support.fuzz
	NODEAGENT_KEEP_FIGURES=1 $(PYTEST) tests/project/test_fuzz.py --hypothesis-profile=search
	NODEAGENT_KEEP_FIGURES=1 $(PYTEST) integration --soak

# A root shell in a guest that has nodeagent installed and running.
guest: guest-packages
	$(BIN)/python -m integration.guest.shell

install:
	scripts/install.sh

uninstall:
	scripts/uninstall.sh

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pages of docs/reference that repeat the code.
reference: $(VENV)/.ready
	$(BIN)/python -m scripts.reference

# The outputs and pictures of commands in README and docs/.
shown: $(VENV)/.ready
	$(BIN)/python -m scripts.shown

# The documentation as a site, in build/site: open index.html there.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The screenshots of docs/screens, from terminals in a guest.
screens: guest-packages $(VENV)/.ready
	$(BIN)/python -m integration.screens

# Every figure with a goal, beside the goal, in some three minutes; kept in benchmarks/results.
bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

# What an agent and its commands cost; `make test` counts again what of it are counts. benchmarks/results/costs.json.
bench-costs: $(VENV)/.ready
	$(BIN)/python -m benchmarks --costs

# What an agent costs in a guest beside 0, 100 and 400 pods, in some ten minutes; benchmarks/results/guest.json.
bench-guest: $(VENV)/.ready
	$(BIN)/python -m integration.guest_costs

# An hour of 1,000 pods that come and go beside an agent that is restarted; benchmarks/results/churn.json.
bench-churn: $(VENV)/.ready
	$(BIN)/python -m benchmarks --churn

# One more admission on every machine, with every number of pods and every set of options; benchmarks/results/matrix.json.
bench-matrix: $(VENV)/.ready
	$(BIN)/python -m benchmarks --long

# The kept figures into docs/performance.md.
bench-docs: $(VENV)/.ready
	$(BIN)/python -m benchmarks --docs

# What the tests of reliability count, into docs/reliability.md; what guests counted stays as it was kept.
figures: $(VENV)/.ready
	NODEAGENT_KEEP_FIGURES=1 $(PYTEST) -q --all tests/daemon/test_crash_points.py tests/daemon/test_damage.py tests/daemon/test_full_disk.py tests/daemon/test_write_failures.py
	$(BIN)/python scripts/reliability.py

# The wheel, with units, documents, examples, manual pages and completions in its share, and the source archive; in dist.
dist: $(VENV)/.ready
	rm -rf share
	$(BIN)/python -m nodeagent.cli.man_pages share share/fish/vendor_completions.d
	$(BIN)/python -m build --no-isolation

# The Debian package for the release that this host runs; in dist.
deb:
	scripts/deb.sh

clean:
	rm -rf $(VENV) .cache build dist share *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
