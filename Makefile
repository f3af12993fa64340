# Everything runs in .venv at the root; nothing but Python 3.11, make and a C++ compiler has to be there.
PYTHON ?= python3.11
BIN := .venv/bin
TEST_PATH := $(CURDIR)/tests:$(CURDIR)/tests/unit:$(CURDIR)/tests/ray

.PHONY: sweep test test-slow test-cluster chaos soak bench docs check format

# Set up, run the quickstart sweep, print the winner and where its files are.
sweep: .venv/installed
	$(BIN)/python -m raysweep.cli.main run search_spaces/quickstart.yaml --overwrite

# Set up, run all tests.
test: .venv/installed
	$(BIN)/python -m pytest

# The tests that take minutes: whole sweeps of model families, warm against fresh groups.
test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow -n 0

# The longest come first, so that three that run side by side end together.
CLUSTER_TESTS := $(addprefix tests/cluster/test_,lost_nodes.py slurm.py ray_jobs.py nodes.py)

# Several nodes, Ray Jobs and Slurm on this machine: as root, with Slurm installed; what is lacking is skipped.
test-cluster: .venv/installed
	PYTHONPATH="$(TEST_PATH)" $(BIN)/python -m pytest -m "cluster and not slow" -n 3 -rs $(CLUSTER_TESTS)

# Inject faults into real worker groups and sweeps, and judge how they end (half an hour; as root, all of them).
chaos: .venv/installed
	PYTHONPATH="$(TEST_PATH)" $(BIN)/python tests/chaos/run.py --only "$(ONLY)"

# 150 candidates through warm groups: what grows, and what is left behind.
soak: .venv/installed
	PYTHONPATH="$(TEST_PATH)" $(BIN)/python tests/chaos/soak.py

# Measure beside what users would pick instead, and write docs/benchmarks.md (an hour; ONLY=name,name for some).
bench: .venv/installed
	PYTHONPATH="$(CURDIR)" $(BIN)/python benchmarks/collect.py --only "$(ONLY)"

# The documentation as a site in build/site; a link that leads nowhere fails.
docs: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict

# Format, lint, types, structure.
check: .venv/installed
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest tests/structure -n 0

# Format, and write docs/map.md and docs/reference/ from the code.
format: .venv/installed
	$(BIN)/python tests/structure/write_map.py
	$(BIN)/python tests/structure/write_reference.py
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# The stamp is made last, so an installation that was cut off is done again. Modules are compiled by all cores, where
# pip would use one; a few are templates that do not compile.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch .venv/installed
