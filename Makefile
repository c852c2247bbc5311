# HitLab: `make` lists the targets.

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo transformers aisbench tiers test test-deep test-aisbench test-tiers test-real test-stack lint format docs requirements
.PHONY: bench bench-engine bench-server bench-l2 lmcache up watch down logs password clean images image-hitlab image-vllm-cpu image-aisbench image-tiers base-images

STARTED := $(shell date +%s)
took = echo "make $@: $$(($$(date +%s) - $(STARTED))) s"

help:
	@echo 'HitLab: request data with a known prefix-cache hit rate, a real vLLM, a verdict exact to the token.'
	@echo
	@echo '  make demo       prepare and run a small benchmark on the built-in simulator: no GPU, no model, no Docker'
	@echo '  make test       the tests that need nothing but Python'
	@echo '  make test-deep  property tests with many more examples than make test; run by hand'
	@echo '  make test-real  the tests that talk to a real vLLM, on the CPU; builds its environment once, 3.4 GB'
	@echo '  make transformers  add transformers to .venv, 170 MB: tokenizers that have no tokenizer.json'
	@echo '  make aisbench   build the environment of the AISBench driver, 2.2 GB, outside the checkout'
	@echo '  make test-aisbench  the tests with the real AISBench, on the simulator and a real vLLM'
	@echo '  make tiers      build the environment of the benches of LMCache (bench server, bench l2), 1.8 GB, outside the checkout'
	@echo '  make test-tiers the tests with real LMCache: its cache server, its L2 adapters, a Redis'
	@echo '  make lint       ruff and mypy'
	@echo '  make format     format the code'
	@echo '  make docs       write the pages in docs/ that are made from code'
	@echo '  make requirements  renew the pins in requirements/ from pyproject.toml'
	@echo
	@echo 'With Docker (Compose v2):'
	@echo '  make bench SCENARIO=F  measure an engine with any scenario file; ends with the table and the report'
	@echo '  make bench-engine ARGS=... hitlab bench engine in a container; so do bench-server and bench-l2 (LMCache beside HitLab)'
	@echo '  make lmcache    start LMCache'"'"'s cache server on 127.0.0.1:5555 and 8080, for bench-server'
	@echo '  make up         the demo with dashboards; PROFILE=cpu: on a real vLLM without a GPU'
	@echo '  make watch      only Grafana, Prometheus and the reports, for runs of make bench'
	@echo '  make logs       follow the logs of the containers'
	@echo '  make password   print the password of Grafana (user admin)'
	@echo '  make down       stop and remove containers, networks and volumes; ./artifacts stays'
	@echo '  make clean      the same, and the images; CACHES=1: also what engines downloaded and compiled'
	@echo '  make images     build the images now; make base-images: their bases, where no registry can be reached'
	@echo '  make test-stack the tests that need Docker; installs and starts one on a bare Debian (as root)'
	@echo
	@echo 'Settings, as in `make demo PYTHON=python3.12`:'
	@echo '  PYTHON          interpreter to build the environments with (3.11 or newer; now: $(PYTHON))'
	@echo '  TORCH_INDEX     test-real: index that carries the CPU build of torch, where yours does not'
	@echo '  PIP_FIND_LINKS  test-real: or a folder that holds its wheel'
	@echo '  ENGINE, DRIVER  bench: instead of what the scenario says (external, simulator, vllm; native, aisbench)'
	@echo '  MODE            bench: text, or mm for requests with images'
	@echo '  MODELS_DIR, DATA_DIR  bench: folders that the scenario reads from, besides its own'
	@echo '  ARTIFACTS_DIR   bench, watch: where run directories go (./artifacts)'
	@echo '  DEMO_MINUTES    up: how long the demo measures (5)'
	@echo '  BASE_IMAGE, CA_BUNDLE, WHEELS, TORCH_INDEX  images: base, certificates, folder of wheels, index with torch'
	@echo '  HITLAB_IMAGE, HITLAB_AISBENCH_IMAGE, HITLAB_TIERS_IMAGE, VLLM_CPU_IMAGE, PROMETHEUS_IMAGE, GRAFANA_IMAGE  an image'
	@echo '                  by name, or by digest (name@sha256:...): then it is not built'
	@echo '  GRAFANA_PORT, ANALYZER_PORT, PROMETHEUS_PORT  up, watch: ports of 127.0.0.1; not set: 3000, 9400, 9090, or free ones'
	@. docker/stack.sh; echo "  COMPOSE_PROJECT_NAME  whose containers, networks and volumes; now: $$COMPOSE_PROJECT_NAME"
	@echo '  XDG_CACHE_HOME  aisbench, test-real: keeps the environments in $${XDG_CACHE_HOME:-~/.cache}/hitlab'

demo: .venv/ready
	@.venv/bin/hitlab prepare --scenario "$${SCENARIO:-examples/quickstart/quickstart.yaml}" --mode text
	@.venv/bin/hitlab run --scenario "$${SCENARIO:-examples/quickstart/quickstart.yaml}"
	@$(took)

# Into the environment of `make demo`; a rebuilt one needs it again. The pins are those of base.txt, and more.
transformers: .venv/ready
	@.venv/bin/pip install -qq --require-hashes --no-deps -r requirements/transformers.txt
	@$(took)

test: .venv-dev/ready
	@.venv-dev/bin/pytest -n 4 -m 'not deep' tests
	@$(took)

test-deep: .venv-dev/ready
	@.venv-dev/bin/pytest -n 2 -m deep --durations=10 tests
	@$(took)

# Nothing is captured: the engine takes its time, and its progress is worth seeing.
test-real: .venv-dev/ready
	@.venv-dev/bin/pytest --capture=no --durations=10 tests/real
	@$(took)

# The driver looks for it where this puts it; HITLAB_AISBENCH_PYTHON names another one.
aisbench:
	@$(find_python); "$$python" -m environments.aisbench
	@$(took)

test-aisbench: .venv-dev/ready
	@.venv-dev/bin/pytest -v -n 2 --dist loadgroup --durations=10 tests/aisbench
	@$(took)

# bench server and bench l2 go on with its python; HITLAB_TIERS_PYTHON names another one.
tiers:
	@$(find_python); "$$python" -m environments.tiers
	@$(took)

test-tiers: .venv-dev/ready
	@.venv-dev/bin/pytest -v -n 2 --dist loadfile --durations=10 tests/tiers/real
	@$(took)

test-stack: .venv-dev/ready
	@docker/test-stack
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

docs: .venv-dev/ready
	@.venv-dev/bin/python -m contract.scenario.schema
	@.venv-dev/bin/python -m docs.generate
	@.venv-dev/bin/python -m docs.picture
	@$(took)

# Recipes see every variable of make's command line and of the environment; none is pasted into a line of shell.
export SCENARIO MODE ENGINE DRIVER MODELS_DIR DATA_DIR

# make ends with 2 whatever goes wrong; docker/bench ends with HitLab's own code.
bench:
	@docker/bench

bench-engine bench-server bench-l2:
	@docker/bench-flags $(@:bench-%=%) $(ARGS)

# The server works as the caller, as its benches do.
lmcache:
	@docker/lmcache

up:
	@docker/up $(if $(filter cpu,$(PROFILE)),cpu,demo)

watch:
	@docker/up watch

logs:
	@. docker/stack.sh; stack --profile '*' logs --follow

password:
	@docker/check
	@. docker/stack.sh; stack run --rm --no-TTY --no-deps --entrypoint cat init /secrets/grafana-admin-password
	@echo

down:
	@docker/down

clean:
	@docker/down --images

images:
	@docker/images hitlab vllm-cpu

image-hitlab image-vllm-cpu image-aisbench image-tiers: image-%:
	@docker/images $*

base-images:
	@docker/check
	@images/base/make-base-images

# Other pins: a new environment. Another pyproject.toml alone: only our own entry in it.
%/ready: %/packages pyproject.toml
	@$*/bin/pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

.venv/packages: requirements/base.txt
.venv-dev/packages: requirements/dev.txt
.venv/packages .venv-dev/packages: requirements/build.txt
	@$(find_python); \
	echo "building $(@D) from $^ with $$python"; \
	"$$python" -m venv --clear $(@D); \
	$(@D)/bin/pip install -qq --require-hashes --no-deps $(addprefix -r ,$^)
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
	$(COMPILE) --constraint requirements/dev.txt --output-file requirements/base.txt pyproject.toml; \
	$(COMPILE) --constraint requirements/dev.txt --extra transformers --output-file requirements/transformers.txt pyproject.toml; \
	$(COMPILE) --allow-unsafe --output-file requirements/tiers.txt requirements/tiers.in; \
	sed -i '/^# The following packages are considered/,$$d' requirements/tiers.txt
	@$(took)
