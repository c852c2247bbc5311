# HitLab: `make` says what there is.

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-real lint format requirements

SCENARIO := scenarios/quickstart.yaml
STARTED := $(shell date +%s)
took = echo "make $@: $$(($$(date +%s) - $(STARTED))) s"

help:
	@echo 'HitLab: request data with a known prefix-cache hit rate, a real vLLM, a verdict to the token.'
	@echo
	@echo '  make demo       prepare and run a small benchmark on the built-in simulator: no GPU, no model, no Docker'
	@echo '  make test       the tests that need nothing but Python'
	@echo '  make test-real  the tests that talk to a real vLLM, on the CPU; builds its environment once, 3.4 GB'
	@echo '  make lint       ruff and mypy'
	@echo '  make format     let ruff put the files in order'
	@echo '  make requirements  renew the pins in requirements/ from pyproject.toml'
	@echo
	@echo 'Settings, as in `make demo PYTHON=python3.12`:'
	@echo '  PYTHON          interpreter to build the environments with (3.11 or newer; now: $(PYTHON))'
	@echo '  TORCH_INDEX     test-real: index that carries the CPU build of torch, where yours does not'
	@echo '  PIP_FIND_LINKS  test-real: or a folder that holds its wheel'
	@echo '  XDG_CACHE_HOME  test-real: keeps the environment in $${XDG_CACHE_HOME:-~/.cache}/hitlab'

demo: .venv/ready
	@.venv/bin/hitlab prepare --scenario $(SCENARIO) --mode text
	@.venv/bin/hitlab run --scenario $(SCENARIO)
	@$(took)

test: .venv-dev/ready
	@.venv-dev/bin/pytest -n 2 tests
	@$(took)

# Nothing is captured: the engine takes its time, and its progress is worth seeing.
test-real: .venv-dev/ready
	@.venv-dev/bin/pytest --capture=no tests/real
	@$(took)

lint: .venv-dev/ready
	@.venv-dev/bin/ruff check .
	@.venv-dev/bin/ruff format --check .
	@.venv-dev/bin/mypy
	@$(took)

format: .venv-dev/ready
	@.venv-dev/bin/ruff check --fix .
	@.venv-dev/bin/ruff format .
	@$(took)

# Other pins: a new environment. Another pyproject.toml alone: only our own entry in it.
%/ready: %/packages pyproject.toml
	@$*/bin/pip install -qq --no-deps --editable .
	@touch $@

.venv/packages: requirements/base.txt
.venv-dev/packages: requirements/dev.txt
.venv/packages .venv-dev/packages:
	@$(find_python); \
	echo "building $(@D) from $< with $$python"; \
	"$$python" -m venv --clear $(@D); \
	$(@D)/bin/pip install -qq --require-hashes --no-deps -r $<
	@touch $@

# Sets $python to an interpreter that is new enough and makes virtual environments: PYTHON, else one on the PATH.
# Debian and Ubuntu keep what makes them (ensurepip) in a package of its own.
define find_python
bare=; \
for python in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11 ''; do \
	version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2] if sys.version_info >= (3, 11) else "")' 2>/dev/null) || continue; \
	[ -n "$$version" ] || continue; \
	if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then break; fi; \
	bare=$${bare:-$$version}; \
done; \
if [ -z "$$python" ]; then \
	if [ -n "$$bare" ]; then \
		echo "Python $$bare cannot make virtual environments. On Debian or Ubuntu: sudo apt-get install python$$bare-venv" >&2; \
	else \
		echo "HitLab needs Python 3.11 or newer. On Debian or Ubuntu: sudo apt-get install python3.11 python3.11-venv; or name one: make PYTHON=/path/to/python3" >&2; \
	fi; \
	exit 1; \
fi
endef

# The newest versions that fit. The base pins are chosen among the dev pins, so that tests and users run the same.
# The project itself is named by its own extras: it is not a pin.
COMPILE = build/pip-tools/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --unsafe-package hitlab
requirements:
	@$(find_python); "$$python" -m venv --clear build/pip-tools
	@build/pip-tools/bin/pip install -qq pip-tools
	@export CUSTOM_COMPILE_COMMAND='make requirements'; \
	$(COMPILE) --extra dev --output-file requirements/dev.txt pyproject.toml; \
	$(COMPILE) --constraint requirements/dev.txt --output-file requirements/base.txt pyproject.toml
	@$(took)
