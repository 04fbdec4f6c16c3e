# make demo    set up, then scan, rewrite, verify and time a SANA transformer
# make test    set up, then the fast tests (under 10 minutes)
# make slow    the rest: the whole model zoo where it is at hand, fuzzing
# make sanitize  the kernels' tests, at every ISA level, where addresses and undefined behaviour are checked
# make lint    ruff, mypy, clang-format
# make docs    the documentation, into build/docs; a warning is an error
# make native  rebuild the kernels after a change of a C++ file
#
# Everything lives in .venv, which `make clean` removes.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(shell find native -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name 'CMakeLists.txt')
# Two workers, a thread each: the tests are many and small.
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

.PHONY: setup demo test slow sanitize lint docs native clean
setup: $(READY)

# torch first, and pinned for everything that follows, so that no dependency brings in another one.
$(VENV)/.torch: Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "fxrewrite needs Python 3.10 or newer: make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "$(TORCH)" numpy
	echo "$(TORCH)" > $(VENV)/constraints.txt
	touch $@

$(READY): $(VENV)/.torch pyproject.toml $(NATIVE)
	PIP_CONSTRAINT=$(VENV)/constraints.txt $(BIN)/python -m pip install -q "scikit-build-core>=0.10" "cmake>=3.26" ninja
	PIP_CONSTRAINT=$(VENV)/constraints.txt $(BIN)/python -m pip install -q --no-build-isolation -e '.[test,dev]'
	touch $@

demo: setup
	$(BIN)/python examples/sana.py

test: setup
	$(PYTEST) -m "not slow" tests

slow: setup
	$(PYTEST) -m slow tests

# A build of its own, which GCC's sanitizers watch: some 3 minutes, and as long for the tests.
sanitize: setup
	$(BIN)/cmake -S native -B build/sanitize -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DCMAKE_BUILD_TYPE=Release -DFXREWRITE_SANITIZE=ON \
	  -DFXREWRITE_CUDA=OFF
	$(BIN)/cmake --build build/sanitize --target fxrewrite_cpu
	$(BIN)/python -m tests.native.sanitize

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict fxrewrite patterns
	$(BIN)/clang-format --dry-run --Werror $$(find native -name '*.cpp' -o -name '*.h' -o -name '*.cu')

# Read from the sources, without importing them: an environment of its own, without torch.
DOCS := build/docs-venv
$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install -q mkdocs-material "mkdocstrings[python]"
	touch $@

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict -q

native:
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
