# Everything a person does with this repository. `make` alone explains.
.DEFAULT_GOAL := help
.PHONY: help run test check sim proof soak release oldest fuzz described format static bench profile clean lock browser database proxies outside typescript react helm
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# The modules of this repository are compiled once, not in every process of every engine, whatever the environment wants.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-input
# uv installs on all cores, a minute faster than pip. It has none of pip's settings (a mirror, wheels in a folder): where only those lead to
# the packages, it fails and pip installs.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r $(1) 2>/dev/null || \
	$(PIP) --require-hashes -r $(1)
# The first interpreter that is new enough; PYTHON=/path/to/python overrides.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# The oldest Ray that pyproject.toml allows.
RAY ?= 2.55.0

# Tests that compute are spread over the workers; those that share an engine, or a browser, stay together on one of them
# (tests/support/worker_groups.py). Four workers for all tests, whatever the machine: two at most have engines at a time; the others' tests
# wait more than they compute.
# Without these options pytest runs everything in one process, which is what a debugger wants.
# A worker that ends (a test took too long) ends the run: pytest-xdist 3.8 replaces it, and may then wait for ever for the others.
SPREAD := --max-worker-restart 0 -n

help: ## this text
	@echo "ray-notification-engine"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "First time here? 'make run', then open the link it prints. Ctrl-C stops it."
	@echo "Settings come from ENGINE_* variables or engine.toml: ENGINE_PORT=9000 ENGINE_SHARDS=4 make run; '$(BIN)/engine config' shows all"

# `exec` leaves no shell in between, so that a SIGTERM to make reaches the engine, which then drains.
run: $(VENV)/.installed ## start the engine on this machine (installs itself into .venv first)
	@exec $(BIN)/python -m engine up

# Types are checked beside the tests, which wait a lot. The tests are collected once before: four workers would each compile all of them.
test: $(VENV)/.installed-test format browser database proxies typescript react ## everything: format, lint, types, all tests (engine, chaos, browser), some twelve minutes on two cores
	@$(BIN)/mypy >$(VENV)/mypy.txt & types=$$!; \
	$(BIN)/python -m pytest -qq --collect-only >$(VENV)/collected.txt; \
	$(BIN)/python -m pytest -q $(SPREAD) 4 --durations=10; tests=$$?; \
	wait $$types && types=0 || types=1; cat $(VENV)/mypy.txt; exit $$((tests | types))

check: static ## format, lint, types and the fast tests, a minute or two
	@$(BIN)/python -m pytest -q $(SPREAD) 2 --quick -m "not engine and not browser and not slow"

sim: $(VENV)/.installed-test ## the engine without each feature, then simulated under every fault: HOURS=1 for longer, SEED=7 to replay one exactly
	$(if $(SEED),,@$(BIN)/python -m tests.conformance.without_features)
	@exec $(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED)) $(if $(HOURS),--hours $(HOURS)) $(if $(FAULTS),--faults $(FAULTS))

proof: $(VENV)/.installed-test outside requirements/mcp/node_modules/.package-lock.json ## flip 10 000 bits, damage 1 000 blocks, cut the power 200 times, spoil networks, others' suites. FLIPS= BLOCKS= CUTS= SEED=
	@exec $(BIN)/python -m tests.proof $(if $(FLIPS),--flips $(FLIPS)) $(if $(BLOCKS),--blocks $(BLOCKS)) $(if $(CUTS),--cuts $(CUTS)) \
		$(if $(SEED),--seed $(SEED))

soak: $(VENV)/.installed-test ## kills, scaling, upgrades, fail-overs and clock steps at random, HOURS=2, under the checker of histories. SEED=
	@exec $(BIN)/python -m bench endurance $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED))

# Of the last commit, so that two people build the same bytes. AUDIT= leaves out the report on known vulnerabilities, which needs the internet.
AUDIT := yes
release: $(VENV)/release/.installed ## dist/: the wheel of the last commit, a bill of materials, an audit of the dependencies, their checksums
	@rm -rf build dist && mkdir -p build/source dist
	@git archive HEAD | (umask 022 && tar -x -C build/source)
	@cd build/source && umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(abspath $(BIN)/python) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir ../../dist .
	@cd build/source && $(abspath $(VENV)/release)/bin/cyclonedx-py requirements requirements/image.txt --pyproject pyproject.toml \
		--output-reproducible --output-file ../../dist/sbom.cdx.json 2>/dev/null
	@$(if $(AUDIT),$(VENV)/release/bin/pip-audit --disable-pip --require-hashes -r requirements/image.txt >dist/audit.txt || cat dist/audit.txt)
	@cd dist && sha256sum * >SHA256SUMS && cat SHA256SUMS

$(VENV)/release/.installed: $(VENV)/.installed-test requirements/release.txt
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/release
	@$(BIN)/uv pip install --quiet --python $(VENV)/release/bin/python --require-hashes -r requirements/release.txt
	@touch $@

# Everything as locked but Ray, and protobuf: Serve of Ray 2.55 fails with 7.
# Not part of `make test`: it installs a second environment, and takes some minutes.
oldest: $(VENV)/.installed-test ## the tests of engine.ray on the oldest Ray that is supported: RAY=2.57.0 for another one
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/ray-$(RAY)
	@grep -v '^ *--hash' requirements/test.txt | sed 's/ *\\$$//' | grep -v '^ray\[\?[a-z,]*\]\?==' >$(VENV)/ray-$(RAY)/others.txt
	@$(BIN)/uv pip install --quiet --no-deps --python $(VENV)/ray-$(RAY)/bin/python --compile-bytecode \
		-r $(VENV)/ray-$(RAY)/others.txt ray==$(RAY)
	@$(BIN)/uv pip install --quiet --no-deps --python $(VENV)/ray-$(RAY)/bin/python --compile-bytecode 'protobuf<7'
	@PYTHONPATH=$(CURDIR) $(VENV)/ray-$(RAY)/bin/python -m pytest -q --quick tests/ray

fuzz: $(VENV)/.installed-test ## send anything to a running engine: HOURS=1 for longer, SEED=7 for the same again, ONLY=http,frames
	@exec $(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(HOURS),--hours $(HOURS)) $(if $(ONLY),--only $(ONLY))

described: $(VENV)/.installed-test ## requests made from /openapi.json to a running engine, with a token of each scope: MINUTES=5 ONLY=publish
	@exec $(BIN)/python -m tests.fuzz.described $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY))

format: $(VENV)/.installed-test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

static: format
	@$(BIN)/mypy

bench: $(VENV)/.installed-test ## measure on this machine; BENCH=latency, BENCH="report --peers", BENCH=--help and so on
	@exec $(BIN)/python -m bench $(BENCH)

profile: $(VENV)/.installed-test ## where the Python of an engine under load spends its time; PROFILE="--publishers 16 --roles edge"
	@exec $(BIN)/python -m bench profile $(PROFILE)

lock: $(VENV)/.installed-test ## resolve the dependencies anew into requirements/
	$(BIN)/uv pip compile pyproject.toml --extra build --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --quiet --output-file requirements/engine.txt
	$(BIN)/uv pip compile pyproject.toml --extra build --extra apprise --extra digest --extra kafka --extra mail --extra mcp --extra nats --extra postgresql --extra push --extra ray-events --extra traces --constraint requirements/engine.txt \
		--upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --quiet --output-file requirements/image.txt
	$(BIN)/uv pip compile pyproject.toml --extra test --extra bench --constraint requirements/engine.txt --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" --quiet \
		--output-file requirements/test.txt
	$(BIN)/uv pip compile requirements/release.in --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-annotate --custom-compile-command "make lock" --quiet --output-file requirements/release.txt

clean: ## remove everything that was made here: .venv, caches, the engine's data directory
	rm -rf $(VENV) clients/js/lib clients/js/node_modules clients/kotlin/target examples/react/node_modules requirements/mcp/node_modules .engine .pytest_cache .hypothesis .mypy_cache .ruff_cache tests/output build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; install one, or say PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "make: cannot create $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# The lock pins versions and hashes; the project itself is linked, not copied, and built with the locked setuptools.
$(VENV)/.installed: requirements/engine.txt pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) (once; a minute or two)"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements/test.txt >$(VENV)/uv.txt && $(PIP) --require-hashes -r $(VENV)/uv.txt
	@$(call install,requirements/engine.txt)
	@PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-test: requirements/test.txt $(VENV)/.installed
	@echo "installing what the tests need"
	@$(call install,requirements/test.txt)
	@touch $@

# Of the server alone: Debian's package starts one for the machine where nothing says otherwise. redis-tools: redis-cli, and a Redis with TLS.
database:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && command -v nats-server >/dev/null && command -v redis-cli >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing PostgreSQL, NATS and redis-cli for the tests of the history, of sources and of a Redis Cluster"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql-common redis-tools >/dev/null && \
			sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf && \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql nats-server >/dev/null || \
			echo "make: apt could not install PostgreSQL, NATS and redis-cli" >&2; \
	else \
		echo "make: no PostgreSQL, NATS or redis-cli: their tests will be skipped. To have them: sudo apt install postgresql nats-server redis-tools" >&2; \
	fi

# The headless shell takes a third of Chromium's CPU. Where apt has none, the tests use Chromium throughout.
browser:
	@lacking=; { command -v chromium || command -v chromium-browser || command -v google-chrome || lacking=chromium; \
		command -v chromium-headless-shell || lacking="$${lacking:+$$lacking }chromium-headless-shell"; } >/dev/null; \
	if [ -z "$$lacking" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $$lacking for the browser tests"; \
		apt-get update -qq; \
		for name in $$lacking; do \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove $$name >/dev/null || \
				echo "make: apt could not install $$name" >&2; \
		done; \
	elif [ "$${lacking%% *}" = chromium ]; then \
		echo "make: no Chromium: the browser tests will be skipped. To have them: sudo apt install chromium, or $(BIN)/playwright install chromium" >&2; \
	fi

# nginx and HAProxy, in front of an edge. Debian's packages would start both as services.
proxies:
	@command -v nginx >/dev/null && command -v haproxy >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing nginx and HAProxy for the tests of proxies"; \
		apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light haproxy >/dev/null || \
			echo "make: apt could not install nginx and HAProxy" >&2; \
	else \
		echo "make: no nginx or HAProxy: their tests will be skipped. To have them: sudo apt install nginx-light haproxy" >&2; \
	fi

# Programs of suites that `make proof` runs, where Go is installed. The first build takes some minutes.
OUTSIDE := github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0 github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible
outside: $(VENV)/.installed-test proxies
	@test -x $(VENV)/go/h2spec -o ! "$$(command -v go)" || (export GOBIN=$(abspath $(VENV)/go); for program in $(OUTSIDE); do go install $$program 2>/dev/null || exit 1; done) || \
		echo "make: Go could not build Toxiproxy and h2spec" >&2

# For the tests of the chart, where Go is installed. Not part of `make test`: the first build takes some minutes.
HELM := v3.17.3
helm: ## Helm for tests/deploy/test_helm.py, built by Go into ~/go/bin
	@command -v helm >/dev/null || GOBIN=$(HOME)/go/bin go install helm.sh/helm/v3/cmd/helm@$(HELM)

# For the declarations of the browser client. The tests say so when it is missing.
typescript: clients/js/node_modules/.package-lock.json

clients/js/node_modules/.package-lock.json: clients/js/package-lock.json
	@! command -v npm >/dev/null || npm ci --prefix clients/js --no-audit --no-fund --loglevel=error >/dev/null || \
		echo "make: npm could not install TypeScript" >&2

requirements/mcp/node_modules/.package-lock.json: requirements/mcp/package-lock.json
	@! command -v npm >/dev/null || npm ci --prefix requirements/mcp --no-audit --no-fund --loglevel=error >/dev/null || \
		echo "make: npm could not install the conformance suite of MCP" >&2

react: examples/react/node_modules/.package-lock.json

examples/react/node_modules/.package-lock.json: examples/react/package-lock.json
	@! command -v npm >/dev/null || npm ci --prefix examples/react --no-audit --no-fund --loglevel=error >/dev/null || \
		echo "make: npm could not install React" >&2
