# Everything runs in .venv, which `setup` makes and keeps right. PYTHON: the interpreter it is made of.
PYTHON ?= python3
RUN := .venv/bin/python -m
CODE := src tests scripts bench
PYTEST := $(RUN) pytest

.DEFAULT_GOAL := help
.PHONY: help setup model llama demo demo-llama test test-fast test-real test-llama lint format bench clean distclean

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## the environment in .venv (2 to 4 minutes, then nothing to do)
	@$(PYTHON) -m scripts.setup

model: setup ## the small real model in .cache (30 seconds, then nothing to do)
	@$(RUN) scripts.smollm2
	@$(RUN) scripts.tiny

llama: setup ## llama.cpp with RPC and a small model in .cache (10 minutes on two cores, then nothing to do)
	@$(RUN) scripts.llama_cpp

demo: model ## one prompt from a rehearsal humd through bee and vLLM and back
	@$(RUN) scripts.demo

demo-llama: llama ## the same over two slices of llama.cpp on this machine
	@$(RUN) scripts.demo_llama

test: ## all tests and lint; what fails hides nothing of the rest
	@$(MAKE) --no-print-directory --keep-going test-fast test-real test-llama lint

test-fast: setup ## the tests that need no real engine
	$(PYTEST) -n 2 -m "not real and not llama" --durations=10

test-real: model ## the tests that start vLLM
	$(PYTEST) -m real --durations=10

test-llama: llama ## the tests that start llama.cpp
	$(PYTEST) -m llama --durations=10

lint: setup ## ruff, its formatter, mypy
	@failed=0; for what in "ruff check" "ruff format --check" mypy; do \
	    echo "$$what"; $(RUN) $$what $(CODE) || failed=1; done; exit $$failed

format: setup ## puts the code into the one form that lint accepts
	$(RUN) ruff check --fix $(CODE)
	$(RUN) ruff format $(CODE)

bench: model ## the budgets of docs/architecture.md, measured
	@$(RUN) bench.start
	@$(RUN) bench.relay
	@$(RUN) bench.rpc_door

clean: ## removes what tools and builds left
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## removes the environment and the models as well
	rm -rf .venv .cache
