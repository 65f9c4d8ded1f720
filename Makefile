# The commands of this checkout. They need Python 3.11 or newer, make and a package index;
# everything else is installed into .venv, in the versions that constraints.txt names. lightning-verl, lightning-ray
# and lightning-grpo are tested in .venv-verl with constraints-verl.txt; .venv-rl has what lightning-grpo needs alone.

PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
PLUGINS := $(filter-out %-grpo %-ray %-verl,$(sort $(patsubst %/pyproject.toml,%,$(wildcard plugins/lightning-*/pyproject.toml))))
MADE_FOR := $(VENV)/.made-for

VERL_VENV := .venv-verl
VERL_BIN := $(VERL_VENV)/bin
VERL_PLUGINS := $(addprefix plugins/lightning-,agentos agents environments evals export grpo http proxy ray sqlite tokens verl viewer)
VERL_MADE_FOR := $(VERL_VENV)/.made-for

RL_VENV := .venv-rl
RL_BIN := $(RL_VENV)/bin
RL_PLUGINS := $(addprefix plugins/lightning-,environments grpo http proxy sqlite tokens)
RL_MADE_FOR := $(RL_VENV)/.made-for

FRAMEWORKS_VENV := .venv-frameworks
ADK_VENV := .venv-adk
CODING_AGENTS := @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0 @google/gemini-cli@0.61.0
AGENTS_VENV := .venv-agents
MORE_CODING_AGENTS := @qwen-code/qwen-code@0.15.10 opencode-ai@1.18.33

LOWEST_VENV := .venv-lowest
LOWEST_PLUGINS := $(addprefix plugins/lightning-,apo gepa http mongo proxy sqlite)
LOWEST_TESTS := $(addprefix tests/,adapter agent emitter registry runner tracer types test_plugins.py) \
	$(addprefix plugins/lightning-,apo/tests/test_endpoint.py gepa/tests/test_suite.py mongo/tests/test_values.py sqlite/tests/test_values.py \
	$(addprefix http/tests/test_,otlp.py server.py) \
	$(addprefix proxy/tests/test_,capture.py faults.py openai_client.py replicas.py serving.py))

# Checks the JSDoc types of the viewer's pages. Nothing else of Node is used, and users need none of it.
TSC_VERSION := 5.9.3
TSC := npx --yes --loglevel=error --package typescript@$(TSC_VERSION) -- tsc

# On a terminal pip says what it does while it lasts.
QUIET := $(if $(MAKE_TERMOUT),,--quiet)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Hundreds of tests start a Python, which would compile this source each time.
unexport PYTHONDONTWRITEBYTECODE
# mkdocs-material's announcement of its successor is no warning about this site.
export NO_MKDOCS_2_WARNING := 1

.PHONY: help quickstart gate quickstart-rl test test-fast check bench gpu-check screenshots docs lowest frameworks pythons ships-in wheels clean empty-venv \
	empty-verl-venv empty-rl-venv found-python

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

quickstart: $(MADE_FOR) ## improve the example agent's prompt: no account, GPU or network
	$(BIN)/agl train examples/quickstart/config.yaml

gate: $(MADE_FOR) ## check that the example agent is not worse than examples/quickstart/baseline.json says
	$(BIN)/agl gate examples/quickstart/config.yaml --baseline examples/quickstart/baseline.json --max-drop 0.1

quickstart-rl: $(RL_MADE_FOR) ## train the model behind an example agent, on a processor: no account, GPU or network
	$(RL_BIN)/python examples/rl_calculator/train.py

test: $(MADE_FOR) $(VERL_MADE_FOR) ## run every test, the slow ones too
	$(BIN)/pytest -n 3 --dist loadscope --no-loadscope-reorder # many tests wait, so three share two processors
	$(VERL_BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder examples/rl_calculator plugins/lightning-verl/tests plugins/lightning-grpo/tests examples/gsm8k_grpo examples/reasoning_gym_grpo \
		examples/agent_service examples/sql_agent/test_rl_config.py plugins/lightning-export/tests/test_datasets.py \
		plugins/lightning-tokens/tests/test_generator.py plugins/lightning-tokens/tests/learning/test_rewards_by_call.py
	$(VERL_BIN)/pytest plugins/lightning-ray/tests # a process has one Ray, and lightning-verl's tests share another one

test-fast: $(MADE_FOR) ## run the core's tests that need no other process, in less than a minute
	$(BIN)/pytest -q -n 2 --dist loadscope -m 'not slow and not processes' tests

check: $(MADE_FOR) ## format, lint, types, layers, docs, and source that compiles without a warning
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=plugins/lightning-grpo:plugins/lightning-verl $(BIN)/lint-imports
	@if command -v npx >/dev/null; then echo "tsc $(TSC_VERSION)"; $(TSC) -p plugins/lightning-viewer; \
		else echo "There is no npx here, so the types of the viewer's pages are not checked."; fi
	$(BIN)/mkdocs build --quiet --strict
	$(BIN)/python -W error -m compileall -q -f .ci benchmarks examples lightning_core plugins tests

bench: $(MADE_FOR) ## measure what the project promises, a line a figure
	@set -e; for script in benchmarks/*.py; do $(BIN)/python "$$script"; done

# The environment is the one that is there: plugins/lightning-verl/README.md has the command for GPUs.
gpu-check: ## try training with lightning-verl on this machine's GPU, a line a stage; CHECK="--device cpu" without one
	@test -x $(VERL_BIN)/python || { \
		echo "There is no $(VERL_VENV). Make it as plugins/lightning-verl/README.md says, or: make $(VERL_MADE_FOR)" >&2; exit 1; }
	@$(VERL_BIN)/python -m lightning_verl.check $(CHECK)

screenshots: $(MADE_FOR) ## keep a picture of each of the viewer's pages in build/screenshots; it takes a Chromium
	AGL_SCREENSHOTS=build/screenshots $(BIN)/pytest -q plugins/lightning-viewer/tests/test_pages.py

docs: $(MADE_FOR) ## show the documentation in a browser, and follow its changes
	$(BIN)/mkdocs serve --strict

lowest: found-python ## try the lowest versions of constraints-lowest.txt in an environment of their own
	$(PYTHON) -m venv --clear $(LOWEST_VENV)
	$(LOWEST_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(LOWEST_VENV)/bin/python -m pip install --quiet --constraint constraints-lowest.txt \
		--build-constraint constraints.txt --group lowest --editable '.[instrument,testing]' \
		$(LOWEST_PLUGINS:%=--editable %)
	$(LOWEST_VENV)/bin/pytest -q -m 'not slow' -p no:cacheprovider $(LOWEST_TESTS)

frameworks: found-python ## try the example agents with AutoGen, CrewAI, DSPy, Google ADK, and Claude Code, Codex and gemini-cli where npm is (2.4 GB)
	$(PYTHON) -m venv --clear $(ADK_VENV)
	$(ADK_VENV)/bin/python -m pip install --quiet --constraint constraints-adk.txt google-adk litellm
	@if command -v npm >/dev/null; then npm install --silent --no-fund --no-audit --prefix $(ADK_VENV) $(CODING_AGENTS); \
		else echo "There is no npm here, so Claude Code, Codex and gemini-cli are not tried."; fi
	$(PYTHON) -m venv --clear $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --constraint constraints-frameworks.txt --upgrade pip
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --constraint constraints-frameworks.txt \
		--build-constraint constraints.txt --group frameworks --editable '.[instrument]' \
		--editable plugins/lightning-http --editable plugins/lightning-proxy --editable plugins/lightning-agents
	$(FRAMEWORKS_VENV)/bin/pytest -q -p no:cacheprovider examples/agents

agents: $(MADE_FOR) ## run clients and coding agents as they are, and say which leave one exact training row (1 GB; AGENTS="codex")
	@mkdir -p $(AGENTS_VENV)
	npm install --silent --no-fund --no-audit --prefix $(AGENTS_VENV) $(CODING_AGENTS) $(MORE_CODING_AGENTS)
	$(PYTHON) -m venv $(AGENTS_VENV)/aider
	$(AGENTS_VENV)/aider/bin/python -m pip install --quiet aider-chat==0.86.2
	$(PYTHON) -m venv $(AGENTS_VENV)/mini
	$(AGENTS_VENV)/mini/bin/python -m pip install --quiet mini-swe-agent==2.4.6 mcp
	$(BIN)/python .ci/clients.py $(AGENTS)

pythons: $(MADE_FOR) ## run the fast tests on the other Pythons that are here, each in an environment of its own
	@.ci/pythons $(BIN)/python

ships-in: $(MADE_FOR) ## write down which plugin ships which component, after a change of entry points
	$(BIN)/python .ci/ships_in.py

wheels: $(MADE_FOR) ## build the wheels into dist/ and try them in clean environments
	$(BIN)/python .ci/wheels.py $(PLUGINS)

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) $(VERL_VENV) $(RL_VENV) $(LOWEST_VENV) $(FRAMEWORKS_VENV) $(ADK_VENV) $(AGENTS_VENV) .venv-3.* .mkdocs build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One pip call installs the core beside its plugins: the `lightning-core` of the public index is a
# foreign project, and a plugin that is installed alone would look for its core there.
$(MADE_FOR): constraints.txt pyproject.toml $(PLUGINS:%=%/pyproject.toml)
	@echo "Installing the versions of constraints.txt into $(VENV); the first time takes a minute."
	@$(BIN)/python -m pip install $(QUIET) --constraint constraints.txt --upgrade pip
	@$(BIN)/python -m pip install $(QUIET) --constraint constraints.txt --build-constraint constraints.txt \
		--group dev --editable '.[instrument]' $(PLUGINS:%=--editable %)
	@echo "$(CURDIR)" >$@

# Training needs packages (2 GB) that cannot be installed beside some of the other plugins.
$(VERL_MADE_FOR): constraints-verl.txt pyproject.toml $(VERL_PLUGINS:%=%/pyproject.toml)
	@echo "Installing the versions of constraints-verl.txt into $(VERL_VENV); the first time takes minutes, and 2 GB."
	@$(VERL_BIN)/python -m pip install $(QUIET) --constraint constraints-verl.txt --upgrade pip
	@$(VERL_BIN)/python -m pip install $(QUIET) --constraint constraints-verl.txt \
		--build-constraint constraints-verl.txt --group verl --editable . $(VERL_PLUGINS:%=--editable %)
	@echo "$(CURDIR)" >$@

# torch's build for processors, where the index has one: the version that constraints-verl.txt names.
$(RL_MADE_FOR): constraints-verl.txt pyproject.toml $(RL_PLUGINS:%=%/pyproject.toml)
	@echo "Installing torch and transformers into $(RL_VENV); the first time takes a minute or two."
	@$(RL_BIN)/python -m pip install $(QUIET) --constraint constraints-verl.txt --upgrade pip
	@$(RL_BIN)/python -m pip install $(QUIET) --constraint constraints-verl.txt \
		--build-constraint constraints-verl.txt --group rl --editable . $(RL_PLUGINS:%=--editable %)
	@echo "$(CURDIR)" >$@

# Scripts and editable installs hold absolute paths, so a .venv works only in the folder it was made for.
ifneq ($(shell test -x $(BIN)/python && cat $(MADE_FOR) 2>/dev/null),$(CURDIR))
$(MADE_FOR): empty-venv
endif
ifneq ($(shell test -x $(VERL_BIN)/python && cat $(VERL_MADE_FOR) 2>/dev/null),$(CURDIR))
$(VERL_MADE_FOR): empty-verl-venv
endif

ifneq ($(shell test -x $(RL_BIN)/python && cat $(RL_MADE_FOR) 2>/dev/null),$(CURDIR))
$(RL_MADE_FOR): empty-rl-venv
endif

empty-rl-venv: found-python
	@$(PYTHON) -m venv --clear $(RL_VENV)

empty-verl-venv: found-python
	@$(PYTHON) -m venv --clear $(VERL_VENV)

empty-venv: found-python
	@$(PYTHON) -m venv --clear $(VENV)

found-python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no '$(PYTHON)' here. Name a Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python " + \
		sys.version.split()[0] + ", 3.11 or newer is needed. Name one: make PYTHON=/path/to/python")'
