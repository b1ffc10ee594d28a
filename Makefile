# Every target sets up what it needs; python3 (3.11 to 3.14, with venv) and make are enough.
#   make test PYTHON=python3.13     another interpreter, in an environment of its own
#   make test ARGS="-k claim -x"    arguments for pytest
#   make test UV=                   install with pip although uv is there

PYTHON = python3
UV ?= $(shell command -v uv 2>/dev/null)

# A PYTHON that was asked for gets its own environment beside the usual one.
VENV ?= .venv$(if $(filter-out file,$(origin PYTHON)),-$(notdir $(PYTHON)))
BIN = $(VENV)/bin
LOCK = requirements/dev.txt
STAMP = $(VENV)/.installed-for

# pip is the way out when uv is there but does not know this machine's proxy, mirror or certificates.
pip = $(BIN)/python -m pip install $(1)
uv = "$(UV)" pip install --python $(BIN)/python $(1) || { echo "uv could not; trying pip" >&2; $(pip); }
install = $(if $(UV),$(uv),$(pip))

# The stamp holds the folder and the interpreter it was made for: a copied tree would otherwise go on importing the sources of the first one.
MADE_FOR := $(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null)
ifneq "$(MADE_FOR)" "$(CURDIR) $(PYTHON)"
.PHONY: $(STAMP)
endif

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: $(STAMP) ## Make .venv and install the locked dependencies

.PHONY: up
up: $(STAMP) ## Show windlass at work until Ctrl-C; ARGS="--seconds 20" ends by itself
	@$(BIN)/python examples/up.py $(ARGS)

# Hundreds of processes import the package; what they compile is kept, whatever the surroundings say.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: test test-long test-all
test: $(STAMP) ## Run all tests but the long ones; ARGS="..." goes to pytest
	$(PYTEST) -m "not long" --ignore=tests/proof $(ARGS)
	@echo "The long tests are left: make test-long runs those, make test-all everything."
test-long: $(STAMP) ## Run the long tests: proofs by kills, races and chance, and whole matrices
	$(PYTEST) -m "long or hypothesis" $(ARGS)
test-all: $(STAMP) ## Run all tests
	$(PYTEST) $(ARGS)

.PHONY: check check-format check-lint check-types check-layers check-docs
check: check-format check-lint check-types check-layers check-docs check-words ## Check format, lint, types, layers, generated docs and words
check-format: $(STAMP)
	$(BIN)/ruff format --check
check-lint: $(STAMP)
	$(BIN)/ruff check
check-types: $(STAMP)
	$(BIN)/python -m mypy
check-layers: $(STAMP)
	$(BIN)/lint-imports --no-logo
check-docs: $(STAMP)
	$(if $(wildcard docs/generate.py),$(BIN)/python docs/generate.py --check,@echo "docs/generate.py does not exist; no generated docs to check")
check-words: $(STAMP)
	$(BIN)/python docs/words.py

.PHONY: format
format: $(STAMP) ## Format the code and fix what lint can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: bench
bench: $(STAMP) ## Measure; ONLY=engine takes one part, QUICK=1 fewer rows
	$(BIN)/python bench/run.py $(if $(ONLY),--only "$(ONLY)") $(if $(filter-out 0,$(QUICK)),--quick)

.PHONY: bench-against
bench-against: $(STAMP) ## Measure beside another commit: REV=HEAD~1, ROUNDS=5, ONLY and QUICK as for bench
	$(BIN)/python bench/against.py $(REV) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only "$(ONLY)") $(if $(filter-out 0,$(QUICK)),--quick)

.PHONY: race
race: $(STAMP) ## Measure beside other queues, each in an environment of its own; QUICK=1 takes 12 minutes, ONLY=pgqueuer some of them
	$(BIN)/python bench/race.py $(if $(ONLY),--only "$(ONLY)") $(if $(filter-out 0,$(QUICK)),--quick)

.PHONY: docs
docs: $(STAMP) ## Write the generated parts of the docs
	$(BIN)/python docs/generate.py

# Versions already in the lock stay unless UPGRADE=1. Uses whatever uv there is, so that a new dependency need not be installed first.
.PHONY: lock
lock: ## Write requirements/dev.txt from pyproject.toml; UPGRADE=1 takes the newest versions
	@test -n "$(UV)" || test -x $(BIN)/uv || $(MAKE) $(STAMP)
	"$(or $(UV),$(BIN)/uv)" pip compile pyproject.toml --extra postgres --group dev --python-version 3.11 --universal --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(if $(filter-out 0,$(UPGRADE)),--upgrade) \
		--quiet --output-file $(LOCK)

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf .venv .venv-* dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): $(LOCK) pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
		{ echo "windlass needs Python 3.11 to 3.14. Name one: make PYTHON=python3.13" >&2; exit 1; }
	@echo "Installing $(LOCK) into $(VENV) with $(if $(UV),uv,pip); the first time this takes about a minute."
ifneq "$(MADE_FOR)" "$(CURDIR) $(PYTHON)"
	"$(PYTHON)" -m venv --clear $(VENV)
endif
	$(call install,--require-hashes -r $(LOCK))
	$(call install,--no-deps --no-build-isolation --editable .)
	@echo "$$(pwd -P) $(PYTHON)" > $(STAMP)
