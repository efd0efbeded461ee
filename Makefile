# Every target does its own set-up: a virtual environment in .venv with the pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROCESSES ?= 2

.PHONY: demo test lint docs gallery bench slow clean

demo: $(READY)  ## from a trained modular-addition transformer to its graph, a report and a page
	@echo "Model: the modular-addition transformer that this project trained and ships"
	@echo "       (src/interbasis/checkpoints/README.md says how)."
	$(BIN)/interbasis demo --out runs/demo

test: $(READY) lint  ## linters, types, tests; a file's tests stay in one process, long files come first
	$(BIN)/python tests/viewer/chromium.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

lint: $(READY)  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)  ## the documentation as a site, in build/site/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

PAGES ?= modadd cifar10 conv
gallery: $(READY)  ## the live pages of the docs, in docs/live; PAGES=stories STORIES=FOLDER for the language model
	$(BIN)/python docs/gallery.py $(PAGES) $(if $(CIFAR10),--cifar10 $(CIFAR10)) $(if $(STORIES),--stories $(STORIES))

bench: $(READY)  ## speed, as ratios measured in one run, beside the stored baseline where there is one
	OMP_NUM_THREADS=1 $(BIN)/interbasis bench --out build/bench \
		$(if $(wildcard benchmarks/baseline.json),--baseline benchmarks/baseline.json)

slow: $(READY)  ## checks that take minutes
	$(BIN)/python -m pytest -m slow

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "interbasis needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs/demo build/site
