# Everything that a fresh clone needs: Python 3.10 or newer, and make.
# `make` lists the targets. The environment is in .venv, and is created once.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
# What does not depend on each other runs side by side: the checks, and what the tests need.
MAKEFLAGS += --jobs=2

VENV := .venv
PY := $(abspath $(VENV))/bin/python
INSTALLED := $(VENV)/.installed
# Runs a command with JAVA_HOME and PYSPARK_PYTHON set; finds Java, or downloads it.
SPARK := $(PY) -m tools.java $(PY)
# The classes of Spark's JVM, parsed: the tests start some forty of them.
CLASSES := $(VENV)/spark.jsa
# RocketMQ's Node client, for the tests.
NODE := $(VENV)/node/.installed
# The documentation as a site, in site/; broken links, missing anchors and pages in no menu fail.
SITE = out=$$(NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict 2>&1) || { echo "$$out" >&2; exit 1; }
PYTEST_ARGS ?=
# Processes that share the tests: one has those of Spark's JVM, one begins with the slow ones.
WORKERS ?= 3

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes, and each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-24s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(INSTALLED) ## Spark writes and reads despite a kill -9, follows a store, and meets RocketMQ's consumers
	@$(SPARK) examples/demo.py

.PHONY: demo-group
demo-group: $(INSTALLED) ## Three stores elect a leader, which is killed while Spark writes
	@$(SPARK) examples/demo_group.py

.PHONY: demo-read
demo-read: $(INSTALLED) ## Read a broker's store with Spark: topics, a batch query, a stream
	@$(SPARK) examples/demo_read.py

.PHONY: test
test: lint $(CLASSES) $(NODE) ## Run lint and all tests (PYTEST_ARGS="-k name" selects tests)
	@# A `make` that a test starts is not one of this one's.
	@MAKEFLAGS= $(SPARK) -m pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

.PHONY: test-spark-versions
test-spark-versions: $(INSTALLED) ## Run the essential tests on Spark 4.0, 4.1 and 4.2
	@$(SPARK) -m tools.spark_versions $(PYTEST_ARGS)

.PHONY: test-spark-versions-more
test-spark-versions-more: $(INSTALLED) ## Run slower tests on them: replicas, Connect, pipelines, Delta and Iceberg
	@$(SPARK) -m tools.spark_versions -m spark_versions_more $(PYTEST_ARGS)

$(CLASSES): $(INSTALLED) tests/support/processes/jvm.py
	@echo "Archiving the classes of Spark's JVM (the first time this takes a minute) ..."
	@$(SPARK) -m tests.support.processes.jvm

$(NODE): $(INSTALLED) tests/broker/clients/node/package-lock.json tools/node.py
	@echo "Installing RocketMQ's Node client ..."
	@$(PY) -m tools.node && mkdir -p $(@D) && touch $@

.PHONY: lint
lint: style types imports site ## Check style, words, types, imports and the links of the documentation

.PHONY: style types imports site
style: $(INSTALLED)
	@$(PY) -m ruff check --quiet
	@$(PY) -m ruff format --check --quiet || { echo "The files above need: $(VENV)/bin/ruff format" >&2; exit 1; }
	@$(PY) -m tools.words

# NumPy for Python 3.10 ends at 2.2, whose types say less than the code relies on.
types: $(INSTALLED)
	@if $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; \
		then $(PY) -m mypy --no-error-summary --show-traceback; \
		else echo "Types are checked with Python 3.11 or newer only." >&2; fi

imports: $(INSTALLED)
	@$(VENV)/bin/lint-imports --no-logo --no-cache

site: $(INSTALLED)
	@$(SITE)

.PHONY: bench
bench: $(INSTALLED) ## Measure speed and memory on generated stores
	@$(SPARK) -m benchmarks $(BENCH_ARGS)

.PHONY: notebook
notebook: $(INSTALLED) ## Open the notebooks of examples/ in JupyterLab
	@$(PY) -c "import jupyterlab" 2>/dev/null || { echo "Installing JupyterLab into $(VENV) ..."; \
		$(PY) -m pip install --quiet --editable '.[notebooks]' --config-settings editable_mode=compat; }
	@$(SPARK) -m jupyterlab examples

.PHONY: docs
docs: $(INSTALLED) ## Generate the reference pages (docs/, conf/store.conf), and build site/index.html
	@$(PY) -m tools.docs
	@$(SITE)

.PHONY: clean
clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) .venv-spark build dist site *.egg-info .demo .bench .compiled
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f rmqstore_spark/layout/kernel/_kernel*.so

# Runs again only if the dependencies or the C sources have changed.
$(INSTALLED): setup.py pyproject.toml tools/venv.sh $(wildcard rmqstore_spark/layout/kernel/c/*.[ch])
	@PYTHON="$(PYTHON)" tools/venv.sh $(VENV)
	@echo "Installing into $(VENV) (the first time this takes some minutes) ..."
	@# editable_mode: Spark lists the folders of sys.path for its sources; the newer way of
	@# installing has none there.
	@# use-pep517: pip would warn of the older way in which packages without wheels are built.
	@$(PY) -m pip install --quiet --use-pep517 --editable '.[dev]' --config-settings editable_mode=compat
	@$(PY) -c "import rmqstore_spark.layout.kernel"  # says so where it could not be compiled
	@touch $@
