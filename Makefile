# Every target sets up what it needs and works when run first.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Images for containers often forbid Python to keep what it has compiled. Then each of the hundreds of processes that tests and
# hosts start would compile pandas and Spark's Python anew: five seconds of a core each. Empty is the same as not set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo demo-manufacturing demo-demand-response demo-linear-road demo-trending test test-cluster test-slow test-sparks quick check unit docs figures measure clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml papers/pyproject.toml scripts/setup.sh
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

# More processes than cores: tests on Spark wait a lot.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Every capability in a small form. The checks run beside the tests.
test: setup
	$(MAKE) --no-print-directory --jobs=2 check quick

quick: setup
	$(PYTEST)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p elastream -p elastream_papers
	$(BIN)/mypy scripts/archive_classes.py benchmarks
	$(BIN)/lint-imports

# What keeps clusters for minutes: hosts that come and go, kills and resumption, Nexmark.
test-cluster: setup
	$(PYTEST) -m "cluster and not slow"

# The rest: every kind of cluster, long runs, and every example of every property.
test-slow: setup
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile=full

# Each release of Spark in an environment of its own (450 MB each, fetched once); prints the matrix.
test-sparks: setup
	$(BIN)/python scripts/spark_releases.py

unit: setup
	$(PYTEST) -m "not spark and not kafka and not slow"

docs: setup
	$(BIN)/mkdocs build --strict

figures: setup
	$(BIN)/python scripts/figures.py

# Hours, one figure after the other; FIGURES="overhead release" measures these. A missed bar ends no other measurement.
measure: setup
	$(BIN)/python scripts/figures.py --commands $(FIGURES) | while read -r command; do \
		echo "$$command"; env PATH="$(CURDIR)/$(BIN):$$PATH" $$command </dev/null || true; done

clean:
	rm -rf $(VENV) build papers/build dist site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
