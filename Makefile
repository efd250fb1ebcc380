# `make demo` and `make test` work on a fresh machine that has python3 with venv, g++ and make. Both
# make a virtual environment of their own in .venv, install torch and what else is needed, and build.
#
#   TORCH=torch==2.14.1   the torch to install, as a pip requirement; remove .venv to change it
#   PYTHON=python3.12     the Python that makes .venv
#   MAX_JOBS=2            compiler processes at a time
#
# Every step runs under a time limit, so that a hang is a failure.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --disable-pip-version-check
PIP := $(INSTALL) --quiet
# -k: a process that ignores the signal is killed 30 s later.
WITHIN := timeout -k 30s

SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh') setup.py pyproject.toml dda/_version.py
CPP := $(shell find csrc tests benchmarks -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test bench docs lint format check-torch check-aarch64 check-cuda check-hip tsan model clean

demo: $(VENV)/.demo $(VENV)/.example
	$(WITHIN) 10m $(PY) examples/tensor_parallel_minilm.py

# pytest comes last: its closing line is the outcome.
test: lint docs tsan check-aarch64 check-cuda check-hip $(VENV)/.failpoints $(VENV)/.example
	$(WITHIN) 50m $(PY) -m pytest

bench: $(VENV)/.test
	$(WITHIN) 60m $(VENV)/bin/dda bench all_reduce -b 8 -e 64M -f 2 -g 2 --backend dda,gloo

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP)
	$(VENV)/bin/codespell
	$(WITHIN) 5m $(VENV)/bin/mypy

format: $(VENV)/.test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CPP)

docs: $(VENV)/.test
	$(WITHIN) 5m $(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html

# A model of the protocol's epochs and slots, checked by Spin.
model: $(VENV)/.test
	$(WITHIN) 10m $(PY) tests/model/run.py

# The protocol with threads for ranks, under ThreadSanitizer.
tsan:
	$(WITHIN) 10m $(MAKE) -C tests/tsan

# All that does not include torch must compile and link for a machine that is not an x86.
AARCH64 := aarch64-linux-gnu-g++
PORTABLE := $(filter-out %_avx2.cpp %_avx512.cpp csrc/torch/% csrc/engine/gpu_% csrc/memory/gpu_%,$(filter csrc/%.cpp,$(SOURCES)))
check-aarch64: $(if $(shell command -v $(AARCH64)),build/aarch64/libdda.so)
	@echo "check-aarch64: $(if $^,ok,skipped, there is no $(AARCH64))"

build/aarch64/libdda.so: $(PORTABLE:%.cpp=build/aarch64/%.o)
	$(AARCH64) -shared -pthread -Wl,-z,defs -o $@ $^

build/aarch64/%.o: %.cpp $(filter %.h,$(SOURCES))
	@mkdir -p $(@D)
	$(AARCH64) -std=c++17 -O1 -fPIC -ffp-contract=off -Wall -Wextra -Icsrc/include -Icsrc -c $< -o $@

# The CUDA side, as far as it goes without a GPU.
check-cuda: $(VENV)/.test
	$(if $(shell command -v nvcc),$(WITHIN) 10m $(MAKE) -C tests/cuda PY=$(abspath $(PY)))
	@echo "check-cuda: $(if $(shell command -v nvcc),ok,skipped, there is no nvcc)"

# The kernels as HIP, where there is a clang with AMD's device libraries; see tests/hip/Makefile.
HIP := $(wildcard /opt/rocm/llvm/bin/clang++ /usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ockl.bc)
check-hip: $(VENV)/.test
	$(if $(HIP),$(WITHIN) 10m $(MAKE) -C tests/hip PY=$(abspath $(PY)))
	@echo "check-hip: $(if $(HIP),ok,skipped, there is no ROCm)"

# Which torch: TORCH if given. Where there is a GPU, what pip finds. Elsewhere a CPU build, which is
# a tenth of the size: from where pip looks, or else from PyTorch's own site, whose address uv knows.
TORCH_VERSION := 2.13.0
GPU := $(wildcard /dev/nvidiactl /dev/kfd)
$(VENV)/.torch: | check-torch
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@if [ -n "$(TORCH)$(GPU)" ]; then \
	  $(PIP) "$(or $(TORCH),torch==$(TORCH_VERSION))"; \
	else \
	  $(PIP) "torch==$(TORCH_VERSION)+cpu" 2>/dev/null || { \
	    $(PIP) uv && $(WITHIN) 15m $(VENV)/bin/uv pip install --python $(PY) \
	      --torch-backend cpu "torch==$(TORCH_VERSION)"; \
	  } || { \
	    echo "No CPU build of torch was found; installing the one that pip finds."; \
	    $(PIP) "torch==$(TORCH_VERSION)"; \
	  }; \
	fi
	echo "$(TORCH)" > $@

# .torch says which torch was asked for when .venv was made.
check-torch:
	@if [ -n "$(TORCH)" ] && [ -e $(VENV)/.torch ] && [ "$(TORCH)" != "$$(cat $(VENV)/.torch)" ]; then \
	  echo "$(VENV) was not made with TORCH=$(TORCH); remove $(VENV) to change torch" >&2; exit 1; \
	fi

# Installing builds too; objects are kept in build/, so that only what has changed is compiled.
$(VENV)/.tools: $(VENV)/.torch
	$(PIP) "setuptools>=77" ninja
	touch $@

$(VENV)/.demo: $(VENV)/.tools $(SOURCES)
	$(INSTALL) --no-build-isolation --verbose --editable .
	touch $@

$(VENV)/.test: $(VENV)/.tools $(SOURCES)
	$(INSTALL) --no-build-isolation --verbose --editable '.[bench,docs,lint,test]'
	touch $@

$(VENV)/.example: examples/requirements.txt $(VENV)/.tools
	$(PIP) --no-deps -r $<
	touch $@

# A second build, a package in build/failpoints: in it tests stop or kill a rank at named points.
$(VENV)/.failpoints: $(VENV)/.test $(shell find dda -name '*.py' -not -name _build_info.py)
	DDA_FAILPOINTS=1 $(PY) setup.py --quiet build --build-lib build/failpoints
	touch $@

clean:
	rm -rf $(VENV) build docs/_build docs/generated dda/_build_info.py dda/*.so
