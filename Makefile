# Two commands for a newcomer: `make demo` and `make test`.  Both create .venv and install what they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
GPU    := .venv-gpu
DEMO   := models/bert.dynamo.onnx models/llama.ts.onnx models/convnext.ts.onnx

# Where Python is told to keep nothing it compiles, each process of the tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# Modules are compiled when they are first imported: most that an installation brings never are.
INSTALL := -m pip install --quiet --no-compile --disable-pip-version-check --editable

.PHONY: demo test lint pytest models portability gpu-check clean

$(VENV)/installed: pyproject.toml
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) '.[cpu,dev]'
	touch $(VENV)/usable $@

# Whoever only looks waits for no tools of development.
$(VENV)/usable: pyproject.toml
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) '.[cpu]'
	touch $@

demo: $(VENV)/usable
	@for model in $(DEMO); do printf '\n$$ onnxfuse report %s\n' $$model; $(BIN)/onnxfuse report $$model || exit; done
	@printf '\n$$ onnxfuse optimize %s -o demo\n' '$(DEMO)'
	@$(BIN)/onnxfuse optimize $(DEMO) -o demo

# mypy is one process, and runs where tests wait.
test: $(VENV)/installed
	@$(MAKE) --no-print-directory --jobs=2 --keep-going lint pytest

pytest: $(VENV)/installed
	$(BIN)/python -m pytest

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

models: $(VENV)/installed
	$(BIN)/python $(INSTALL) '.[cpu,dev,models]'
	$(BIN)/python -m models.make

# Other runtimes and tools are installed into ~/.cache/onnxfuse; ARGS goes to benchmarks.portability.
portability: $(VENV)/installed
	$(BIN)/python -m benchmarks.portability $(ARGS)

# onnxruntime-gpu cannot stand beside onnxruntime: another environment, and none where CuPy is there already.  `models`
# brings PyTorch and transformers, beside which kernels and models are timed; a record says what is missing of them.
$(GPU)/installed: pyproject.toml
	$(PYTHON) -m venv $(GPU)
	$(GPU)/bin/python $(INSTALL) '.[gpu,cublaslt,models]'
	touch $@

# ARGS goes to benchmarks.gpu: make gpu-check ARGS='--only attention products'
gpu-check:
	@if $(PYTHON) -c 'import cupy, numpy, onnx, click, ml_dtypes' 2>/dev/null; then exec $(PYTHON) -m benchmarks.gpu $(ARGS); \
	else $(MAKE) --no-print-directory $(GPU)/installed && exec $(GPU)/bin/python -m benchmarks.gpu $(ARGS); fi

clean:
	rm -rf $(VENV) $(GPU) demo
