# Every target does its own set-up. PYTHON chooses the interpreter that .venv is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The oldest Lightning that an upstream pins: the step callback must work on it and on ours. It lies
# beside the environment, for the tests that put it first on the path.
OLD_LIGHTNING := .cache/lightning-2.2.1

# What the upstreams import and we do not, for the tests that run their code where it is at hand.
UPSTREAM_PACKAGES := .cache/upstream-packages

# Where `make cluster-up` puts the dev cluster's files.
CLUSTER ?= .devcluster

# What images are built from: BASE=docker:REFERENCE|localimage:PATH|debootstrap:SUITE@MIRROR instead
# of their own base, and WHEELHOUSE=DIR instead of the package index. See docs/images.md.
BASE ?=
WHEELHOUSE ?=
BUILD_OPTIONS = $(if $(BASE),--base '$(BASE)') $(if $(WHEELHOUSE),--wheelhouse '$(WHEELHOUSE)')

.PHONY: help setup demo test lint format bench lock clean cluster-up cluster-down
.PHONY: images lock-images test-apptainer builder
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed  ## make .venv and install what trains on this machine

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[train]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[train,test,lint]'
	@touch $@

.cache/lightning-%: $(VENV)/.installed
	rm -rf $@.part
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@.part \
	    lightning==$* 'setuptools<81'  # it imports pkg_resources, which newer ones lack
	@mv $@.part $@

$(UPSTREAM_PACKAGES): $(VENV)/.installed tests/pinned_upstreams/requirements.txt
	rm -rf $@ $@.part
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@.part \
	    --requirement tests/pinned_upstreams/requirements.txt
	@mv $@.part $@ && touch $@

demo: $(VENV)/.installed  ## train, preempt, resume and finish a real recipe on this machine
	@$(BIN)/python -m dlbhpc demo

# The tests wait for processes most of the time, so that two cores carry four workers.
test: $(VENV)/.installed-dev $(OLD_LIGHTNING) $(if $(wildcard upstreams/*)$(DLBHPC_UPSTREAMS),$(UPSTREAM_PACKAGES))  ## run the whole test suite
	$(BIN)/python -m pytest --numprocesses 4 --dist load --maxschedchunk 1

lint: $(VENV)/.installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cluster-up: $(VENV)/.installed  ## start a real Slurm of four nodes here (root; Debian's slurm-wlm and munge)
	@$(BIN)/python slurm/devcluster up $(CLUSTER)

cluster-down: $(VENV)/.installed  ## end it and everything that runs on it
	@$(BIN)/python slurm/devcluster down $(CLUSTER)

bench: $(VENV)/.installed-dev  ## print the ratios behind the promises about speed
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

lock:  ## write constraints.txt anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate \
	    --no-emit-index-url --extra train --extra test --extra lint \
	    --output-file constraints.txt pyproject.toml

lock-images: $(VENV)/.installed-dev  ## resolve the images' packages anew (NAMES=..., default: all)
	$(BIN)/python -m dlbhpc.images.resolve $(NAMES)

# Before anything is installed: building needs what pip cannot bring.
builder:
	@command -v apptainer > /dev/null || command -v singularity > /dev/null || { \
	    echo "ERROR: neither Apptainer nor Singularity is here: install Apptainer (1.1 or newer," \
	    "from its releases, EPEL, Conda or Spack) or SingularityCE, or load the site's module" >&2; \
	    exit 2; }

image-%: builder $(VENV)/.installed  ## freeze one pinned upstream in an Apptainer image
	@$(BIN)/python -m dlbhpc image build $* $(BUILD_OPTIONS)

images: builder $(VENV)/.installed  ## freeze all of them
	@$(BIN)/python -m dlbhpc image build all $(BUILD_OPTIONS)

# The bundled upstream's packages as pip chooses them here, so that a torch without CUDA will do.
.cache/wheelhouse: containers/reference/requirements.in constraints.txt
	rm -rf $@ $@.part
	$(BIN)/python -m pip download --quiet --dest $@.part --constraint constraints.txt \
	    --requirement containers/reference/requirements.in
	@mv $@.part $@ && touch $@

test-apptainer: builder $(VENV)/.installed-dev $(if $(WHEELHOUSE),,.cache/wheelhouse)  ## build an image of BASE= and run through it
	DLBHPC_TEST_BASE='$(BASE)' DLBHPC_TEST_WHEELHOUSE='$(or $(WHEELHOUSE),.cache/wheelhouse)' \
	    $(BIN)/python -m pytest -m apptainer

clean:  ## remove the environment and caches; data and runs stay
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
