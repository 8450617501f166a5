# Every target sets up what it needs and works when run first.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Images for containers often forbid Python to keep what it has compiled. Then each of the hundreds of processes that tests and
# hosts start would compile pandas and Spark's Python anew: five seconds of a core each. Empty is the same as not set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo demo-manufacturing demo-demand-response demo-linear-road demo-trending test test-all test-sparks quick check unit docs figures measure clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) sh scripts/setup.sh $(VENV)
	@touch $(READY)

demo: setup
	$(BIN)/elastream run examples/word_count.py

demo-manufacturing: setup
	$(BIN)/elastream run examples/manufacturing.py

demo-demand-response: setup
	$(BIN)/elastream run examples/demand_response.py

demo-linear-road: setup
	$(BIN)/elastream run examples/linear_road.py

demo-trending: setup
	$(BIN)/elastream run examples/trending.py

# Tests run in three processes, file by file, on however few cores: those with Spark wait a lot, those without fill the gaps.
WORKERS ?= 3

# The checks run beside them.
test: setup
	$(MAKE) --no-print-directory --jobs=2 check quick

quick: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p elastream
	$(BIN)/mypy scripts/archive_classes.py
	$(BIN)/lint-imports

# Every example of every property, and what needs minutes.
test-all: test
	$(BIN)/python -m pytest -m "not spark and not kafka and not slow" -n auto --dist loadfile --hypothesis-profile=full
	$(BIN)/python -m pytest -m slow --hypothesis-profile=full

# Each release of Spark in an environment of its own (450 MB each, fetched once); prints the matrix.
test-sparks: setup
	$(BIN)/python scripts/spark_releases.py

unit: setup
	$(BIN)/python -m pytest -m "not spark and not kafka and not slow" -n auto --dist loadfile

docs: setup
	$(BIN)/mkdocs build --strict

figures: setup
	$(BIN)/python scripts/figures.py

# Hours, one figure after the other; FIGURES="overhead release" measures these. A missed bar ends no other measurement.
measure: setup
	$(BIN)/python scripts/figures.py --commands $(FIGURES) | while read -r command; do \
		echo "$$command"; env PATH="$(CURDIR)/$(BIN):$$PATH" $$command </dev/null || true; done

clean:
	rm -rf $(VENV) build dist site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
