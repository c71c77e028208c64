# make demo   set up, then look at this machine, watch it, train a small model, and replay a recording from an H200
# make test   set up, then run every test
# make check  set up, then lint, format, types, import layers
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RECORDINGS := tests/monitor/recordings

.PHONY: demo test check format clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	@printf '\n— This machine: fulltilt env\n\n'
	@$(BIN)/fulltilt env
	@printf '\n— Six seconds of it: fulltilt monitor --interval 0.5 --duration 6\n\n'
	@$(BIN)/fulltilt monitor --interval 0.5 --duration 6
	@printf '\n— A small model: fulltilt train examples/train.yaml training.output=runs/demo\n\n'
	@rm -rf runs/demo
	@$(BIN)/fulltilt train examples/train.yaml training.output=runs/demo
	@printf '\n— An H200 that waits, recorded: fulltilt monitor --replay $(RECORDINGS)/starved.jsonl --html demo.html\n\n'
	@$(BIN)/fulltilt monitor --replay $(RECORDINGS)/starved.jsonl --html demo.html

test: $(STAMP)
	$(BIN)/pytest -n auto

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
