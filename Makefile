# make demo   set up, make photographs, take a slow training script, say why it is slow, make it faster,
#             check that its first losses stay the same
# make test   set up, then run every test
# make check  set up, then lint, format, types, import layers, the documentation's site
# make site   set up, then build the site: site/index.html
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# transformers, for the test of its callback. Not in the environment itself: torchmetrics imports it where it finds it,
# which takes a second in each of the hundreds of processes that the tests start.
PEERS := $(VENV)/peers/.installed
# Tests wait for the processes that they start as often as they compute: three for two cores.
WORKERS := $(shell echo $$(( $$(nproc) * 3 / 2 )))
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
DEMO := runs/demo
SLOW := examples/slow_train.py $(DEMO)/photos --epochs 20 --out $(DEMO)/model.pt

.PHONY: demo test check lint types site peers format clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	@rm -rf $(DEMO)/plan.toml $(DEMO)/report.html $(DEMO)/run.json && mkdir -p $(DEMO)
	@printf '\n— This machine: fulltilt env\n\n'
	@$(BIN)/fulltilt env
	@printf '\n— Photographs, and an ordinary script that trains on them\n\n'
	@$(BIN)/python examples/make_photos.py $(DEMO)/photos
	@printf '\n— Why is it as fast as it is? fulltilt diagnose $(SLOW)\n\n'
	@$(BIN)/fulltilt diagnose --max-seconds 15 $(SLOW) > $(DEMO)/diagnosis.txt
	@sed '/^epoch/d' $(DEMO)/diagnosis.txt
	@printf '\n— Make it faster, check that its first losses stay the same, run it: fulltilt run $(SLOW)\n\n'
	@$(BIN)/fulltilt run --max-seconds 140 --plan $(DEMO)/plan.toml --html $(DEMO)/report.html \
		--json $(DEMO)/run.json $(SLOW) > $(DEMO)/output.txt
	@printf '\n— Before, after, limit\n\n'
	@$(BIN)/python examples/before_after.py $(DEMO)/run.json
	@test ! -e $(DEMO)/report.html || echo '  report     $(DEMO)/report.html (open it in a browser)'

# Hundreds of processes are started: each is to find our modules compiled, even where PYTHONDONTWRITEBYTECODE is set.
test: $(STAMP) $(PEERS)
	$(BIN)/python -m compileall -q -j 0 src
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --junitxml=.pytest_cache/first.xml || \
		{ test $$? -eq 1 && $(BIN)/python scripts/again.py; }

check: lint types site

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

site: $(STAMP)
	$(SITE)

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -q -c constraints.txt -e '.[dev]'
	touch $@

peers: $(PEERS)

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --upgrade --target $(VENV)/peers \
		'transformers>=5' tokenizers regex
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
