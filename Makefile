# On a machine with Python 3.11 or newer and make, each target is all the set-up there is:
# it makes its own virtual environment in .venv when there is none.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/demo
FUZZ_SECONDS := 120

# Many processes import the package: each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-newest lock test-services test-langgraph coverage test-wheel test-oldest test-deep test-adapters test-extras examples \
	clients test-clients record-clients docs bench bench-peers lint nightly first-hour fuzz mutants \
	release-check clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

# The exact versions of a lock file, then the project itself, for which nothing else is fetched.
define install-locked
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
endef

$(STAMP): requirements/test.txt pyproject.toml
	$(install-locked)

$(VENV)/demo/.installed: requirements/demo.txt pyproject.toml
	$(install-locked)

demo: $(DEMO)/.installed  ## a real agent loop with real tools, run through ctxpipe
	$(DEMO)/bin/python -m examples.agent_loop --demo

LOCK := $(VENV)/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links

# For every Python and system that the project supports. Neither file names an index.
lock:  ## renew the exact versions in requirements/, which `make demo` and `make test` install
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOCK) --extra testing --output-file requirements/demo.txt pyproject.toml requirements/build.in
	$(LOCK) --group test $(shell $(PYTHON) -c 'from scripts.install import EXTRAS; print(*(f"--extra {name}" for name in EXTRAS))') \
		--output-file requirements/test.txt pyproject.toml requirements/build.in

lint: $(STAMP)  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# PART=session is ctxpipe/session or ctxpipe/session.py, and the tests of the same name.
PART_FILES = $(wildcard $(foreach place,ctxpipe/$(PART) tests/$(PART) ctxpipe/$(PART).py tests/test_$(PART).py tests/test_$(PART)_*.py,$(place)))

ifdef PART
test: $(STAMP)  ## lint, then pytest; PART=session takes ruff, the imports and the tests of that part only
	$(BIN)/ruff check $(PART_FILES)
	$(BIN)/ruff format --check $(PART_FILES)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal --durations 10 $(filter tests/%,$(PART_FILES))
else
test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal --durations 10
endif

test-services: $(STAMP)  ## storages against PostgreSQL, Redis and an S3; INSTALL=1 installs what is missing
	$(BIN)/python scripts/services.py $(if $(INSTALL),--install)
	CTXPIPE_SERVICES=required $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/storage tests/gateway/test_journal.py

test-langgraph:  ## the recipe for LangGraph, in an environment of its own
	$(PYTHON) -m venv $(VENV)/langgraph
	$(VENV)/langgraph/bin/python scripts/install.py langgraph langgraph-checkpoint-sqlite
	$(VENV)/langgraph/bin/python -m pytest tests/project/test_examples_langgraph.py

# The tests of the LangChain mount want three packages beside its extra.
coverage:  ## pytest with branch coverage, beside every framework; fails below fail_under of pyproject.toml
	$(PYTHON) -m venv $(VENV)/coverage
	$(VENV)/coverage/bin/python scripts/install.py --extras langchain,litellm,pydantic-ai \
		langchain-openai langchain-anthropic deepagents
	$(VENV)/coverage/bin/python -m pytest --numprocesses auto --dist worksteal --cov --cov-report=term

test-wheel: $(STAMP)  ## pytest against the built wheel, on every Python that the classifiers name
	$(BIN)/python scripts/test_wheel.py -- --numprocesses auto --dist worksteal

test-newest:  ## pytest beside the newest version of each dependency, in an environment of its own
	$(PYTHON) -m venv $(VENV)/newest
	$(VENV)/newest/bin/python scripts/install.py --upgrade
	$(VENV)/newest/bin/python -m pytest --numprocesses auto --dist worksteal

test-oldest:  ## pytest beside the oldest versions that pyproject.toml allows, in an environment of its own
	$(PYTHON) -m venv $(VENV)/oldest
	$(PYTHON) scripts/oldest.py > $(VENV)/oldest/oldest.txt
	$(VENV)/oldest/bin/python scripts/install.py --constraint $(VENV)/oldest/oldest.txt
	$(VENV)/oldest/bin/python -m pytest --numprocesses auto --dist worksteal

# `npm ci` wants every platform's package in the lock file, also those that a registry does not have.
clients:  ## install the agents of `make test-clients`, two gigabytes of them, at the versions that tests/clients names
	npm --prefix tests/clients install --no-save --no-audit --no-fund
	$(PYTHON) -m venv tests/clients/.venv
	tests/clients/.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/requirements.txt

# CLIENTS=claude,codex names some of them; each that is named must be there.
CLIENTS ?= claude,codex,codex-key,codex-chatgpt,copilot,copilot-chat,copilot-responses,gemini,mini-swe-agent,opencode,pi
test-clients: $(STAMP) clients  ## real agents, run through the gateway against a scripted API
	CLIENTS=$(CLIENTS) $(BIN)/python -m pytest -rA tests/clients

record-clients: $(STAMP)  ## renew the requests of real agents that the tests replay, after make clients; NAMES="claude gemini" for these alone
	$(BIN)/python tests/clients/record.py $(NAMES)

test-adapters:  ## each mount with its framework's oldest and newest version; MOUNTS="openai mcp" for these alone
	$(PYTHON) scripts/mount_tests.py $(MOUNTS)

test-extras:  ## every extra in one environment: the tests of all mounts, and licences and sizes of what each brings
	$(PYTHON) scripts/mount_tests.py --together

examples:  ## every mount's example, in the environments of test-adapters, against scripted APIs
	$(PYTHON) scripts/mount_tests.py --examples $(MOUNTS)

docs: $(STAMP)  ## the documentation, strictly, into build/site
	$(BIN)/mkdocs build --strict

# DONE="test test-adapters" leaves these out: `make release-check` has rows of their own for them.
nightly:  ## tests, coverage's gate, properties with 1,000 examples each and slow tests, all mounts, first-hour
	$(MAKE) $(filter-out $(DONE),test coverage test-deep test-extras test-langgraph test-adapters examples first-hour)

test-deep: $(STAMP)  ## pytest with 1,000 examples of each property, and the tests that are slow
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest --numprocesses auto

# WITHOUT="make test" leaves that command out, as `make release-check` does, which has a row for it.
WITHOUT ?= $(if $(filter test,$(DONE)),make test)
first-hour:  ## what README and Start tell a new user to do, on the built wheel of the last commit
	PYTHON=$(PYTHON) scripts/first_hour.sh $(if $(WITHOUT),--without '$(WITHOUT)')

fuzz: $(STAMP)  ## search for inputs that break a reader: two minutes for each of five
	$(BIN)/python scripts/install.py --group fuzz
	@set -e; for target in transcripts placeholders archives journals folding; do \
		echo "== $$target"; $(BIN)/python tests/fuzz/search.py $$target $(FUZZ_SECONDS); done

mutants: $(STAMP)  ## the power of the tests: sixty faults, each of which a test must find; ten minutes
	$(BIN)/python scripts/mutants.py --jobs 2

# TRANSCRIPTS is a folder of recorded conversations; without it those that need one are left out. Load and several
# workers take half an hour each, and the workers a PostgreSQL: `make test-services INSTALL=1`.
RECORDED := cache_doctor costs gateway_replay survival
BENCHES  := $(filter-out $(RECORDED),$(patsubst benchmarks/bench_%.py,%,$(wildcard benchmarks/bench_*.py)))

# CHECKS="test mutants" runs these alone.
release-check:  ## every check of a release on the last commit, in one table; goes on where it was stopped
	$(PYTHON) scripts/release_check.py $(CHECKS)

bench: $(STAMP)  ## every benchmark, each with a baseline of the same run; the pages then quote its figures
	@missed=; for name in $(BENCHES); do echo; echo "== $$name"; \
		$(BIN)/python benchmarks/bench_$$name.py --write || missed="$$missed $$name"; done; \
	test -z "$$missed" || echo "== these missed a limit, or failed:$$missed"
ifdef TRANSCRIPTS
	$(BIN)/python benchmarks/bench_costs.py $(TRANSCRIPTS) --all --write
	$(BIN)/python benchmarks/bench_costs.py $(TRANSCRIPTS) --ablate --quick --write
	$(BIN)/python benchmarks/bench_cache_doctor.py $(TRANSCRIPTS) --write
	$(BIN)/python benchmarks/bench_gateway_replay.py $(TRANSCRIPTS)/*.jsonl --write
	$(BIN)/python benchmarks/bench_survival.py $(TRANSCRIPTS) --write
endif
	$(BIN)/python benchmarks/figures.py

# A peer that cannot be installed is told and listed as missing; the others are measured. TRANSCRIPTS is a folder of
# recorded conversations: without it, recall and dollars are left out.
PEERS       := benchmarks/peers
PEER_STAMPS := $(patsubst $(PEERS)/requirements/%.txt,$(PEERS)/.venvs/%/.installed,$(wildcard $(PEERS)/requirements/*.txt))

$(PEERS)/.venvs/openhands/.installed: PYTHON := python3.12
$(PEERS)/.venvs/%/.installed: $(PEERS)/requirements/%.txt
	@{ $(PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $< && touch $@; } \
	|| { echo "$* cannot be installed"; rm -rf $(@D); }

bench-peers: $(STAMP) $(PEER_STAMPS)  ## ctxpipe beside its peers, each in an environment of its own
	$(BIN)/python -m benchmarks.peers.run $(if $(TRANSCRIPTS),--transcripts $(TRANSCRIPTS)) --write
	$(BIN)/python benchmarks/figures.py

clean:  ## remove the virtual environment and what the tools left behind
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist
