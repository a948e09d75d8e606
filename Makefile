# Every target does its own set-up: Debian with Python 3.11, make, gcc and apt is all that is needed.
SHELL := /bin/bash
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help demo test soak check lint format mutants fuzz audit bench vllm venv lock lock-vllm clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: venv ## compare scheduling policies on four emulated engines, about eight minutes
	$(BIN)/isochrone demo $(ARGS)

test: lint vllm ## everything: lint, types, all tests, real vLLM included
	$(BIN)/pytest $(ARGS)

soak: venv vllm ## hours of failures in minutes: engines killed, stopped and drained under load, 45 minutes; SOAK_MINUTES=20
	$(BIN)/pytest tests/soak --timeout 10800 -rP $(ARGS)

check: lint ## lint, types and the tests that need no real engine
	$(BIN)/pytest -m "not vllm" $(ARGS)

lint: venv ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check --quiet src tests benchmarks scripts
	$(BIN)/ruff format --quiet --check src tests benchmarks scripts
	$(BIN)/mypy
	@report=$$($(BIN)/lint-imports --no-cache) || { echo "$$report"; exit 1; }

format: venv ## put the code into its usual shape
	$(BIN)/ruff check --quiet --fix src tests benchmarks scripts
	$(BIN)/ruff format --quiet src tests benchmarks scripts

mutants: venv ## put named faults into the core, one at a time, and see that the tests notice
	$(BIN)/python scripts/mutants.py $(ARGS)

fuzz: venv ## 100,000 examples for each test of tests/fuzz, about 40 minutes; ISOCHRONE_FUZZ_EXAMPLES=...
	ISOCHRONE_FUZZ_EXAMPLES=$${ISOCHRONE_FUZZ_EXAMPLES:-100000} $(BIN)/pytest tests/fuzz -v $(ARGS)

audit: ## known vulnerabilities of the locked versions; needs the network
	scripts/audit.sh $(ARGS)

bench: venv ## what can be measured, and how
	@sed -n '1,200p' benchmarks/README.md

vllm: venv ## real vLLM on the CPU and a tiny model, cached outside the clone
	scripts/vllm_env.sh

venv: ## .venv from requirements/dev.lock
	@scripts/venv.sh

lock: ## write requirements/dev.lock anew
	scripts/lock.sh dev

lock-vllm: ## write requirements/vllm.lock anew
	scripts/lock.sh vllm

clean: ## remove .venv and caches of the clone (not the cache outside it)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
