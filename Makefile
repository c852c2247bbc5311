# HitLab: `make` says what there is.

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo aisbench tiers test test-aisbench test-tiers test-real test-stack lint format requirements
.PHONY: bench bench-engine bench-server bench-l2 lmcache up watch down logs password clean images image-hitlab image-vllm-cpu image-aisbench image-tiers base-images

STARTED := $(shell date +%s)
took = echo "make $@: $$(($$(date +%s) - $(STARTED))) s"

help:
	@echo 'HitLab: request data with a known prefix-cache hit rate, a real vLLM, a verdict to the token.'
	@echo
	@echo '  make demo       prepare and run a small benchmark on the built-in simulator: no GPU, no model, no Docker'
	@echo '  make test       the tests that need nothing but Python'
	@echo '  make test-real  the tests that talk to a real vLLM, on the CPU; builds its environment once, 3.4 GB'
	@echo '  make aisbench   build the environment of the AISBench driver, 2.2 GB, outside the checkout'
	@echo '  make test-aisbench  the tests with the real AISBench, on the simulator and a real vLLM'
	@echo '  make tiers      build the environment of the benches of LMCache (bench server, bench l2), 1.8 GB, outside the checkout'
	@echo '  make test-tiers the tests with real LMCache: its cache server, its L2 adapters, a Redis'
	@echo '  make lint       ruff and mypy'
	@echo '  make format     let ruff put the files in order'
	@echo '  make requirements  renew the pins in requirements/ from pyproject.toml'
	@echo
	@echo 'With Docker (Compose v2):'
	@echo '  make bench SCENARIO=F  measure an engine with any scenario file; ends with the table and the report'
	@echo '  make bench-engine ARGS=... hitlab bench engine in a container; so do bench-server and bench-l2 (LMCache beside HitLab)'
	@echo '  make lmcache    start LMCache'"'"'s cache server on 127.0.0.1:5555 and 8080, for bench-server'
	@echo '  make up         the demo with dashboards; PROFILE=cpu: on a real vLLM without a GPU'
	@echo '  make watch      only Grafana, Prometheus and the reports, for runs of make bench'
	@echo '  make logs       follow what the containers say'
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
	@echo '  XDG_CACHE_HOME  aisbench, test-real: keeps the environments in $${XDG_CACHE_HOME:-~/.cache}/hitlab'

demo: QUICKSTART = "$(or $(SCENARIO),scenarios/quickstart.yaml)"
demo: .venv/ready
	@.venv/bin/hitlab prepare --scenario $(QUICKSTART) --mode text
	@.venv/bin/hitlab run --scenario $(QUICKSTART)
	@$(took)

test: .venv-dev/ready
	@.venv-dev/bin/pytest -n 4 tests
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

export SCENARIO MODE ENGINE DRIVER MODELS_DIR DATA_DIR

# make ends with 2 whatever goes wrong; docker/bench ends with HitLab's own code.
bench:
	@docker/bench

bench-engine bench-server bench-l2:
	@docker/bench-flags $(@:bench-%=%) $(ARGS)

# The server works as the caller, as its benches do.
lmcache:
	@$(MAKE) --no-print-directory image-tiers
	@HITLAB_USER="$$(id -u):$$(id -g)" docker compose up --detach lmcache

UP = $(if $(filter cpu,$(PROFILE)),runner-cpu grafana,runner grafana)
PORTS = GRAFANA_PORT=3000 ANALYZER_PORT=9400 PROMETHEUS_PORT=9090
up:
	@docker/check $(PORTS)
	@docker compose --profile '*' up --build --detach $(UP)
	@$(where_to_look)

# What runs of `make bench` write belongs to whoever started them.
watch:
	@docker/check $(PORTS)
	@mkdir -p "$(or $(ARTIFACTS_DIR),artifacts)"
	@export ARTIFACTS_DIR="$$(realpath "$(or $(ARTIFACTS_DIR),artifacts)")" HITLAB_USER="$$(id -u):$$(id -g)" \
		PROMETHEUS_CONFIG=prometheus.yml; \
	docker compose up --build --detach grafana prometheus analyzer
	@$(where_to_look)

where_to_look = echo "Grafana    http://127.0.0.1:$${GRAFANA_PORT:-3000} (user admin, make password)"; \
	echo "Reports    http://127.0.0.1:$${ANALYZER_PORT:-9400}"; \
	echo "Prometheus http://127.0.0.1:$${PROMETHEUS_PORT:-9090}"

logs:
	@docker compose --profile '*' logs --follow

password:
	@docker/check
	@docker compose run --rm --no-TTY --no-deps --entrypoint cat init /secrets/grafana-admin-password
	@echo

# First the engines that a run left: Compose does not know them, and they hold its network.
down:
	@docker/check
	@docker ps --all --quiet --filter label=com.hitlab.managed | xargs --no-run-if-empty docker rm --force >/dev/null
	@docker compose --profile '*' down --volumes --remove-orphans
	@caches=$$($(own_caches)); [ -z "$$caches" ] || \
		echo 'Caches of engines stay (make clean CACHES=1 removes them):' $$caches >&2

# Volumes of engines that HitLab started for this user: models of the hub, and what an image compiled.
own_caches = docker volume ls --quiet --filter label=com.hitlab.cache --filter label=com.hitlab.user=$$(id -u)

clean: down
	@[ "$(CACHES)" != 1 ] || $(own_caches) | xargs --no-run-if-empty docker volume rm >/dev/null
	@for title in hitlab vllm-cpu hitlab-aisbench hitlab-tiers; do \
		docker images --quiet --filter label=org.opencontainers.image.title=$$title; \
	done | sort -u | xargs --no-run-if-empty docker rmi --force >/dev/null

BUILD = docker build $(if $(BASE_IMAGE),--build-arg BASE_IMAGE="$(BASE_IMAGE)") \
	--build-arg REVISION="$$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
	$(if $(CA_BUNDLE),--secret id=ca$(comma)src="$(CA_BUNDLE)") $(if $(WHEELS),--build-context wheels="$(WHEELS)")
BUILD_WITH_TORCH = $(BUILD) $(if $(TORCH_INDEX),--build-arg TORCH_INDEX="$(TORCH_INDEX)")
comma := ,
images: image-hitlab image-vllm-cpu

image-hitlab:
	@docker/check
	$(BUILD) --file images/hitlab/Dockerfile --tag "$${HITLAB_IMAGE:-hitlab}" .

image-vllm-cpu:
	@docker/check
	$(BUILD_WITH_TORCH) --file images/vllm-cpu/Dockerfile --tag "$${VLLM_CPU_IMAGE:-vllm-cpu}" .

# HitLab's image and an environment with old or large packages.
image-aisbench image-tiers: image-%: image-hitlab
	$(BUILD_WITH_TORCH) --build-arg HITLAB_IMAGE="$${HITLAB_IMAGE:-hitlab}" \
		--file images/hitlab-$*/Dockerfile --tag "$${HITLAB_IMAGE:-hitlab}-$*" .

base-images:
	@docker/check
	@images/base/make-base-images

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
	$(@D)/bin/pip install -qq --require-hashes --no-deps -r $<; \
	rm -f $(@D)/lib/python*/site-packages/urllib3_future.pth
	@touch $@

# urllib3_future.pth: a start-up hook of grafana-client's HTTP library that writes itself over urllib3 (images/hitlab).

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
	$(COMPILE) --constraint requirements/dev.txt --extra stack --output-file requirements/stack.txt pyproject.toml; \
	$(COMPILE) --allow-unsafe --output-file requirements/tiers.txt requirements/tiers.in; \
	sed -i '/^# The following packages are considered/,$$d' requirements/tiers.txt
	@$(took)
