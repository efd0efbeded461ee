# Every target does its own set-up: a virtual environment in .venv with the pinned packages. The demo installs what
# interbasis needs to run, all other targets add what its developers need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
CONSTRAINTS ?= constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
LENS := .venv-lens
DICTIONARIES := .venv-dictionaries
PROCESSES ?= 2

.PHONY: demo test lint lint-page docs gallery bench slow lens dictionaries clean

demo: $(RUNS)  ## from a trained modular-addition transformer to its graph, a report and a page
	@echo "Model: the modular-addition transformer that this project trained and ships"
	@echo "       (src/interbasis/weights/README.md says how)."
	$(BIN)/interbasis demo --out runs/demo

test: $(READY) lint  ## linters, types, tests; a file's tests stay in one process, long files come first
	$(BIN)/python tests/show/viewer/chromium.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder \
		--cov --cov-report=json:build/coverage.json
	$(BIN)/python tests/coverage_table.py build/coverage.json

lint: $(READY)  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory lint-page; \
	else echo "npm is not installed: the page's JavaScript is not checked"; fi

lint-page: node_modules/.ready  ## the page's JavaScript: biome and tsc, from npm
	node_modules/.bin/biome lint --error-on-warnings
	node_modules/.bin/tsc --project jsconfig.json

node_modules/.ready: package.json  # two packages of fixed versions, which depend on nothing but their own binaries
	npm install --silent --no-audit --no-fund --no-package-lock
	touch node_modules/.ready

docs: $(READY)  ## the documentation as a site, in build/site/index.html
	$(BIN)/python tests/notebooks.py docs/notebooks/executed
	$(BIN)/python docs/gallery.py modadd
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

PAGES ?= modadd cifar10 conv
gallery: $(READY)  ## the live pages of the docs, in docs/live; PAGES=stories STORIES=FOLDER for the language model
	$(BIN)/python docs/gallery.py $(PAGES) $(if $(CIFAR10),--cifar10 $(CIFAR10)) $(if $(STORIES),--stories $(STORIES))

bench: $(READY)  ## speed, as ratios measured in one run, beside the stored baseline where there is one
	OMP_NUM_THREADS=1 $(BIN)/interbasis bench --out build/bench \
		$(if $(wildcard benchmarks/baseline.json),--baseline benchmarks/baseline.json)

SLOW ?= tests
slow: $(READY)  ## checks that take minutes; SLOW=FILE for some of them
	$(BIN)/python -m pytest -m slow $(SLOW)

lens: $(LENS)/.ready  ## models of TransformerLens: bridges of the newest, HookedTransformers of the last with them
	OMP_NUM_THREADS=1 $(LENS)/bin/python -m pytest -q tests/models/test_transformer_bridge.py
	OMP_NUM_THREADS=1 PYTHONPATH=$(LENS)/older $(LENS)/bin/python -m pytest -q tests/models/test_transformer_lens.py

$(LENS)/.ready: pyproject.toml constraints.txt  # its own environment: TransformerLens brings 1 GB of packages
	$(PYTHON) -m venv $(LENS)
	$(LENS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lens]' pytest hypothesis
	$(LENS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(LENS)/older \
		'transformer-lens<4' better-abc fancy-einsum
	touch $(LENS)/.ready

dictionaries: $(DICTIONARIES)/.ready  ## dictionaries that sae-lens and eai-sparsify write: read, encoded, decoded as theirs
	OMP_NUM_THREADS=1 $(DICTIONARIES)/bin/python -m pytest -q tests/dictionaries/test_packages.py

$(DICTIONARIES)/.ready: pyproject.toml constraints.txt  # its own environment: they bring 100 packages
	$(PYTHON) -m venv $(DICTIONARIES)
	$(DICTIONARIES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . \
		'sae-lens>=6.54' 'eai-sparsify>=1.3.3' pytest hypothesis
	touch $(DICTIONARIES)/.ready

$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "interbasis needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $(RUNS)

$(READY): $(RUNS)
	$(INSTALL) -e '.[dev]'
	touch $(READY)

clean:
	rm -rf node_modules $(VENV) $(LENS) $(DICTIONARIES) runs/demo build/site
