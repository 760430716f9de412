# make run    the demo: everything in .venv, nothing else to install
# make test   everything CI checks
# make clean  undo both

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed
	$(BIN)/trunkline demo

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto --dist loadfile

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trunkline needs Python 3.11 or newer: make PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The stamps make a second run quick: pip is asked again only when what it would install has changed.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@
