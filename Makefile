# Heliograph. `make` alone prints this help. Everything is set up by the targets themselves.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
MODELS := tests/contracts tests/fuzz tests/simulation/test_simulation.py tests/simulation/test_topic.py tests/simulation/test_client.py tests/simulation/test_bookie.py
KEEP   ?= 0
FULL   ?=
RECORD ?=
SEEDS  ?= 1000
START  ?= 0
ROUNDS ?= 200
MINUTES ?= 10

# Where this is set, each process of each test would compile a thousand modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up down servers lint test test-clients test-spark4 check bench bench-peers scale soak compat sim sim-mutants fuzz chaos chaos-bookie chaos-broker proto handles docs lock clean

help: ## print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | \
	  awk -F '\t' '{ printf "  make %-13s %s\n", $$1, $$2 }'

setup: $(READY) ## make .venv from the lock file, by uv, which is installed into it where there is none

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 13) else \
	  "the locked environment needs Python 3.11 or 3.12; set PYTHON=/path/to/python3.11")'
	@command -v uv >/dev/null || $(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get install -y -q python3-venv; } || { echo "python3-venv is missing: install it with your package manager"; exit 1; }
	@$(PYTHON) tools/environment.py $(VENV)
	@touch $(READY)

demo: $(READY) ## the whole way with 336,776 real flights; KEEP=1 leaves the cluster up
	@KEEP=$(KEEP) $(BIN)/python -m examples.flights

up: $(READY) ## start a Ray head and Heliograph on it
	@$(BIN)/helio up

down: $(READY) ## stop what `make up` started
	@$(BIN)/helio down

servers:
	@missing=""; test -e /usr/share/java/zookeeper.jar || missing="libzookeeper-java"; \
	command -v etcd >/dev/null || missing="$$missing etcd-server"; \
	command -v node >/dev/null || missing="$$missing nodejs"; \
	command -v npm >/dev/null || missing="$$missing npm"; \
	command -v javac >/dev/null || missing="$$missing default-jdk-headless"; \
	command -v mvn >/dev/null || missing="$$missing maven"; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v prometheus-alertmanager >/dev/null || missing="$$missing prometheus-alertmanager"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$(printf ' %s' $$missing) for the tests with foreign servers and clients"; \
	  export DEBIAN_FRONTEND=noninteractive; updated=""; \
	  install() { apt-get install -y -qq --no-install-recommends "$$1" >/dev/null 2>&1; }; \
	  for package in $$missing; do \
	    install $$package && continue; \
	    if [ -z "$$updated" ]; then apt-get update -qq >/dev/null 2>&1; updated=yes; fi; \
	    install $$package \
	    || echo "that failed: $$package cannot be installed here, and the tests that need it are skipped"; \
	  done; \
	else echo "not installed:$$(printf ' %s' $$missing) (needs root and apt); the tests that need it are skipped"; fi

LINT := $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

lint: $(READY)
	@$(LINT)

# Spark 4 needs an environment of its own: RayDP, and so the lock file, has Spark 3.5.
define SPARK4
{ test -x .venv-spark4/bin/pytest || { $(PYTHON) -m venv .venv-spark4 && .venv-spark4/bin/python -m pip install \
  --quiet --disable-pip-version-check -e '.[spark4]' 'pytest>=8.3' 'pytest-timeout>=2.3' 'anyio>=4.12' 'hypothesis>=6.120'; }; } \
  && .venv-spark4/bin/python -m pytest -q -p no:cacheprovider tests/spark4
endef

# Clusters wait more than they work, so STREAMS shares run at a time, and whichever stream is free takes the next one: all end
# at about the same time. The longest come first; what only computes runs beside the clusters of Ray.
STREAMS ?= 4
QUICK :=
SERVERS := $(addprefix tests/cluster/,bookie broker ledger metadata)
DEPLOYMENT := $(addprefix tests/cluster/,deployment install)
CLUSTERS := $(filter-out $(SERVERS) $(DEPLOYMENT) %/__pycache__ %/support,$(patsubst %/,%,$(wildcard tests/cluster/*/)))
QUIET := $(PYTEST) -q -p no:cacheprovider
define CHECKS
$(QUIET) $(QUICK) tests/unit/cli*
$(QUIET) $(QUICK) tests/unit/cluster tests/unit/[d-g]*
$(QUIET) $(QUICK) tests/unit/[o-z]*
$(QUIET) $(QUICK) tests/unit/b*
$(QUIET) $(QUICK) tests/rules tests/scripts tests/unit/a* tests/unit/[h-n]*
$(LINT)
endef
define SHARES
$(QUIET) $(CLUSTERS)
$(CHECKS)
$(QUIET) $(DEPLOYMENT)
$(QUIET) $(SERVERS)
$(QUIET) $(MODELS)
$(QUIET) tests/clients
$(QUIET) tests/browser
$(QUIET) tests/simulation/test_mutants.py
$(QUIET) tests/machines
$(QUIET) tests/spark
$(BIN)/python -m tests.simulation --world ledger --seeds 300 --start 1000 --jobs 1
$(BIN)/python -m tests.simulation --world topic --seeds 100 --start 1000 --jobs 1
$(BIN)/python -m tests.simulation --world client --seeds 30 --start 1000 --jobs 1
$(BIN)/python -m tests.simulation --world deletion --seeds 30 --start 1000 --jobs 1
$(QUIET) tests/chaos
endef
define SHARE
begun=$$(date +%s); output=$$(mktemp); sh -c "$$1" >$$output 2>&1; status=$$?; cat $$output; rm $$output;
echo "share ended with $$status after $$(($$(date +%s) - begun)) s: $$1"; exit $$((status != 0))
endef

define RUN
export FULL=$(FULL) TURN=$(TURN); trap 'trap - TERM; kill 0' INT TERM; \
	echo "$$SHARES" | xargs -d '\n' -n 1 -P $(STREAMS) sh -c "$$SHARE" share & wait $$!
endef

check test: export SHARE := $(SHARE)
check: export SHARES = $(CHECKS)
check: STREAMS := 6
check: QUICK := -m "not slow" --hypothesis-profile=quick
check: $(READY) servers ## the fast tests: format, lint, types, rules, scripts, and the unit tests that are not slow
	@$(RUN)

test: export SHARES := $(SHARES)
test: TURN ?= today
test: $(READY) servers ## everything CI needs: check, contracts, fuzzing, seeds and mutants, real clusters, crashes, Spark, foreign clients; TURN=all runs what has its turn tomorrow, FULL=1 what takes long, and Spark 4, too
	@$(RUN); shares=$$?; spark4=0; \
	test "$${FULL:-0}" = 0 || { $(SPARK4); spark4=$$?; }; \
	exit $$((shares || spark4))

test-clients: $(READY) servers ## foreign clients and tools at their published versions; FULL=1 runs all, RECORD=1 notes it
	@FULL=$(FULL) RECORD=$(RECORD) $(PYTEST) -q -p no:cacheprovider tests/clients; tests=$$?; \
	test -z "$(RECORD)" || $(BIN)/python -m tools.clients_matrix; exit $$tests

compat: $(READY) ## a share of the cluster tests with the oldest and the newest Ray and Python: RAY=2.55.1 PYTHONS=3.12
	@$(BIN)/python -m tools.compat $(addprefix --ray ,$(RAY)) $(addprefix --python ,$(PYTHONS))

test-spark4: ## the data source with Spark 4, in an environment of its own, .venv-spark4; needs a Java 17
	@$(SPARK4)

sim: $(READY) ## simulate ledgers and topics under faults: SEEDS=1000 START=0
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(START)

sim-mutants: $(READY) ## sabotage ledgers and topics in every known way and show how soon each is caught
	@$(BIN)/python -m tests.simulation --mutants

fuzz: $(READY) ## hostile clients at every listener, in turns: MINUTES=10 SEED=any
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

chaos-bookie: $(READY) ## SIGKILL a bookie under load 200 times: ROUNDS=200
	@$(BIN)/python -m tests.chaos.bookie --rounds $(ROUNDS)

chaos-broker: $(READY) ## SIGKILL the broker that owns a topic under load 20 times: ROUNDS=20
	@$(BIN)/python -m tests.chaos.broker $(if $(filter command line environment,$(origin ROUNDS)),--rounds $(ROUNDS))

chaos: $(READY) ## lose machines, disks and networks of a cluster of four: MINUTES=10 SEED=any
	@$(BIN)/python -m tests.machines.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: $(READY) ## measure; prints a table and writes bench-results/
	@$(BIN)/python -m tests.bench

bench-peers: $(READY) ## measure Redis, NATS JetStream, Kafka, Celery, taskiq and Quix Streams beside Heliograph, each with one synced copy
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then for package in redis-server nats-server; do \
	  command -v $$package >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  $$package >/dev/null 2>&1 || echo "$$package cannot be installed here, and is skipped"; done; fi
	@test -x .venv-peers/bin/celery || { $(PYTHON) -m venv .venv-peers && .venv-peers/bin/python -m pip install --quiet \
	  --disable-pip-version-check 'celery[redis]>=5.5' packaging 'taskiq>=0.12' 'taskiq-redis>=1.2' 'quixstreams>=3.20'; } \
	  || echo "Celery, taskiq and Quix Streams cannot be installed here, and are skipped"
	@$(BIN)/python -m tests.bench --only foreign tasks processors

scale: $(READY) ## fill a cluster with synthetic metadata, run all that is periodic, and print each limit: SIZE=100000
	@$(BIN)/python -m tests.scale $(if $(SIZE),--size $(SIZE))

soak: $(READY) ## load a default cluster with what comes and goes, and fit what each part keeps: HOURS=1
	@$(BIN)/python -m tests.soak $(if $(HOURS),--hours $(HOURS))

# Generated code runs on the protobuf that it was made for and on later ones: hence the compiler of protobuf 4.25.
proto: ## generate the Pulsar protocol module again, with a compiler of its own in .venv-proto
	@test -x .venv-proto/bin/python || { $(PYTHON) -m venv .venv-proto && \
	  .venv-proto/bin/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.62.3' 'setuptools<81'; }
	@.venv-proto/bin/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
	  heliograph/protocol/pulsar.proto

handles: $(READY) ## generate the sync client from the asyncio client again
	@$(BIN)/python -m tools.sync_handles
	@$(BIN)/python -m tools.blocking_admin

docs: $(READY) ## generate the pages of all settings, metrics and foreign clients again, and build the site into dist/site
	@$(BIN)/python -m tools.reference
	@$(BIN)/python -m tools.python_page
	@$(BIN)/python -m tests.cluster.calls.table
	@$(BIN)/python -m tests.unit.client.values.table
	@$(BIN)/python -m tools.clients_matrix
	@$(BIN)/python -m tools.site

# An environment of its own: what it brings would make `import ray` four times slower in every process of a cluster.
sbom: ## write a bill of materials (CycloneDX) from the lock file to dist/sbom.json, with a tool in .venv-sbom
	@test -x .venv-sbom/bin/cyclonedx-py || { $(PYTHON) -m venv .venv-sbom && \
	  .venv-sbom/bin/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom==7.5.0'; }
	@mkdir -p dist
	@.venv-sbom/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml -o dist/sbom.json requirements.lock

lock: ## resolve the dependencies again into requirements.lock, and check that arm64 has wheels of them (needs uv)
	@uv pip compile pyproject.toml --extra dev --extra demo --generate-hashes --no-emit-index-url --no-header --no-annotate \
	  --python-version 3.11 -o requirements.lock
	@for platform in aarch64-apple-darwin aarch64-unknown-linux-gnu; do \
	  uv pip compile --quiet pyproject.toml --extra cluster --constraint requirements.lock --only-binary :all: --no-binary etcd3 \
	    --python-version 3.11 --python-platform $$platform >/dev/null || exit 1; done  # wheels; etcd3 is Python alone

clean: ## remove everything that was built
	@rm -rf $(VENV) .venv-proto .venv-sbom .venv-spark4 .venv-compat .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis dist bench-results scale-results soak-results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
