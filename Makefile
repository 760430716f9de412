# make run    the demo; everything is installed into .venv. make run STORE=postgresql://USER@HOST/DATABASE keeps its store
#             there; make run NODES=3 serves with three nodes, over a PostgreSQL of its own or STORE
# make check  for daily use: lint, types, import contracts, and the quick tests that start no process of their own
# make test   everything CI checks: the same, and the tests with the real daemon, browsers and other people's programs.
#             Long matrices and many examples are in CI's run alone: CI=true make test, where a missing program is a failure
#   Both take ENGINE=postgresql: the same tests over databases of PostgreSQL (Debian's, which they start and end). What
#   only SQLite has is left out, and the end of the output says why
# make both   the part of make test ENGINE=postgresql that CI runs: the tests with the mark both_engines; make statements
#             says which statements of SQL they leave out
# make again  the tests that failed last, at most three, one after the other
# make fuzz SECONDS=600   every parser, as long as this (tests/fuzz/README.md); TARGET=coap for one of them
# make soak SECONDS=3600   one daemon under everything at once: does anything grow (tests/soak/README.md)
# make faults  what is lost when the machine fails (tests/faults/README.md); an hour or more, needs a C compiler
# make cluster  three nodes on one PostgreSQL under every fault, and a checker of what clients saw (tests/cluster/README.md);
#             ten minutes, needs a C compiler: make cluster SECONDS=120
# make deb    build/trunkline_….deb for this Debian, with learning and streams; EXTRAS=tracing adds, EXTRAS=none omits; needs no root
# make reproduce   builds the wheel and the package twice, in different circumstances, and compares them; some minutes
# make bench   every throughput beside what others reach in the same minutes; a quarter of an hour, best with nothing else
#              running: make bench BENCH='--rounds 5 --only MQTT'
# make sbom   build/trunkline.cdx.json: every component that an installation has (CycloneDX)
# make audit-dependencies   known flaws in any pinned dependency; needs the network
# make lock   constraints.txt anew for changed requirements, with the hashes of all files; UPGRADE=1 takes newer versions
# make clean  undo all of them

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run lint unit both statements tests check test again fuzz soak faults cluster bench deb reproduce sbom audit-dependencies lock clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed $(if $(STORE)$(NODES),$(VENV)/.installed-postgresql)
	$(BIN)/trunkline demo $(if $(STORE),--store '$(STORE)') $(if $(NODES),--nodes $(NODES))

# Bytecode is kept: without it each daemon that a test starts compiles the product, and each run rewrites every assertion.
unexport PYTHONDONTWRITEBYTECODE
# tests/workers.py runs them in several processes; tests/conftest.py says which files come first.
PROCESSORS = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() or 1)')
# Two runs beside each other need a CACHE each. Over PostgreSQL the same examples of a test take several times as long.
CACHE := .pytest_cache
PYTEST = $(BIN)/pytest -o cache_dir=$(CACHE) $(if $(ENGINE),-rfEs -o timeout=360)
# Lint is one process after the other: the tests use the other processors.
BESIDE = $(MAKE) --no-print-directory --jobs=2 --output-sync=none

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check:
	$(BESIDE) lint unit

# UNITS are the files and folders; all, if it is empty. The end of the output names tests that took more than a second:
# they need the mark slow, or less to do.
LONG = --durations=10 --durations-min=1
unit: $(VENV)/.installed-test
	$(call pytest_in_memory,--workers $(PROCESSORS) --ignore tests/e2e -m "not processes and not slow" $(LONG) $(UNITS))

# Nine of ten statements of SQL are in these tests, most of them in two; some daemons are ended over PostgreSQL, too.
both: $(VENV)/.installed-test
	export ENGINE=postgresql; $(call pytest_in_memory,--workers $$(($(PROCESSORS) + 2)) -m both_engines)

# Statements that no test with that mark runs: in one process, so that it takes some minutes.
statements: $(VENV)/.installed-test
	export ENGINE=postgresql PYTHONPATH=.; $(call pytest_in_memory,-p tests.statements --ignore tests/e2e --ignore tests/cluster)

test:
	$(BESIDE) lint tests

# Daemons wait for the disk at each commit, and tests make and delete thousands of files: where 8 GiB of memory are free
# for files, the tests' files are there.
FOLDER_OF_TESTS = $$(free=$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1); \
  [ "$${free:-0}" -gt 8388608 ] && root=/dev/shm || root=$${TMPDIR:-/tmp}; mktemp -d "$$root/trunkline-tests.XXXXXX")
# A run that did not come to its end (any status but 1) leaves nothing to `make again`.
pytest_in_memory = folder=$(FOLDER_OF_TESTS); if TMPDIR=$$folder $(PYTEST) $(1); then rm -rf "$$folder" || true; \
  else [ $$? = 1 ] || rm -f $(CACHE)/v/cache/lastfailed; echo "the files of the tests that failed: $$folder"; exit 1; fi

# Two workers more than processors: tests with other programs often wait.
tests: $(VENV)/.installed-test
	$(call pytest_in_memory,--workers $$(($(PROCESSORS) + 2)))

again:
	@$(BIN)/python -c 'import json, sys; found = json.load(open("$(CACHE)/v/cache/lastfailed")); \
	  print(*found, sep="\n"); sys.exit(len(found) > 3 and "more than three failed: they are not tried again")'
	$(BIN)/pytest -o cache_dir=$(CACHE) --last-failed --last-failed-no-failures=none

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz $(or $(TARGET),all) --seconds $(or $(SECONDS),600)

soak: $(VENV)/.installed-test
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),3600)

faults: $(VENV)/.installed-test
	$(BIN)/python -m tests.faults

deb: $(VENV)/.installed-test
	$(BIN)/python -m deploy.build_deb --extras '$(EXTRAS)'

reproduce: $(VENV)/.installed-test
	$(BIN)/python -m deploy.reproduce

cluster: $(VENV)/.installed-test $(VENV)/.installed-postgresql
	$(BIN)/python -m tests.cluster --seconds $(or $(SECONDS),600)

bench: $(VENV)/.installed-test
	$(BIN)/python -m tests.benchmarks.suite $(BENCH)

# Of a clean environment with what is installed on a gateway, and nothing that only tests need.
sbom: $(VENV)/.installed-test
	rm -rf build/sbom
	$(BIN)/python -m venv build/sbom
	build/sbom/bin/python -m deploy.install --extras learning,streams
	build/sbom/bin/python -m pip uninstall --quiet --yes pip setuptools
	$(BIN)/cyclonedx-py environment build/sbom/bin/python --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --of JSON -o build/trunkline.cdx.json
	rm -rf build/sbom

# Strict: a package that could not be looked up is a failure, too.
audit-dependencies: $(VENV)/.installed-test
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# Versions that constraints.txt has stay, if they fit.
lock:
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	UV_CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/uv pip compile --quiet pyproject.toml --all-extras --universal \
	  --python-version 3.11 --generate-hashes --annotation-style line $(if $(UPGRADE),--upgrade) -o constraints.txt
	rm -rf build/lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find broker config protocols storage tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.created:
	@echo "Making .venv with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trunkline needs Python 3.11 or newer: make PYTHON=…")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The stamps make a second run quick: pip is asked again only when what it would install has changed.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@$(BIN)/python -m deploy.install --extras learning,streams --editable
	@touch $@

$(VENV)/.installed-postgresql: $(VENV)/.installed
	@$(BIN)/python -c 'import psycopg' 2>/dev/null || \
	  $(BIN)/python -m deploy.install --extras learning,streams,postgresql --editable
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created pyproject.toml constraints.txt
	@$(BIN)/python -m deploy.install --extras learning,streams,test --editable
	@touch $(VENV)/.installed $@
