# `make run` trains the main job, `make test` runs the tests; both build .venv first, once.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
JOB ?= manifests/examples/babyai-goto-cpu.yaml
# cpu or cuda; once installed, the device of .venv.
DEVICE ?= $(or $(patsubst $(VENV)/installed-%,%,$(firstword $(wildcard $(VENV)/installed-*))),cpu)
STAMP := $(VENV)/installed-$(DEVICE)
# Environments of verifiers, which are in no package: those that run with its version in requirements/harnesses.
VERIFIERS ?= https://github.com/PrimeIntellect-ai/verifiers
VERIFIERS_COMMIT := a60a606ecc4d309247edf9ff92c3eabca362781f
# What builds an image from TAG [OPTIONS] FOLDER.
BUILD_IMAGE ?= buildah build --tag
# What builds the trainer's image for a device.
build_trainer = $(BUILD_IMAGE) turnmill/trainer:0.1.0$(patsubst %,-%,$(filter cuda,$(1))) --build-arg DEVICE=$(1) \
	--file images/trainer/Containerfile .
# Test files that run side by side: one per core, four at most (`nproc` alone would answer OMP_NUM_THREADS).
JOBS ?= $(shell n=$$(nproc --all); echo $$((n < 4 ? n : 4)))

.DEFAULT_GOAL := help
.PHONY: help install image extras harnesses run test unit check nightly chaos mutants docs crds dashboards compatibility charts lock audit clean

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

install: $(STAMP) ## Build .venv; with DEVICE=cuda for GPUs

$(STAMP): pyproject.toml requirements/$(DEVICE).txt requirements/hashes.txt requirements/install_cpu_torch.sh \
		requirements/vllm-metadata/pyproject.toml
	@case $(DEVICE) in \
		cpu) echo "Installing into $(VENV) (one to four minutes, 3 GB)";; \
		cuda) echo "Installing into $(VENV) (two to ten minutes, 10 GB)";; \
		*) echo "DEVICE=$(DEVICE): it must be cpu or cuda" >&2; exit 1;; \
	esac
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or name it with 'make PYTHON=...'" >&2; exit 1; }
	@rm -rf $(filter-out $(STAMP),$(wildcard $(VENV)/installed-*)) $(if $(filter-out $(STAMP),$(wildcard $(VENV)/installed-*)),$(VENV))
	@$(PYTHON) -m venv $(VENV)
	@$(PYTHON) requirements/hashed.py requirements/build.txt uv > $(VENV)/uv.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $(VENV)/uv.txt || exit 1
	@if [ $(DEVICE) = cpu ]; then \
		requirements/install_cpu_torch.sh $(BIN)/python && \
		{ $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib/python3*/site-packages/torch || true; }; \
	fi
	@$(PYTHON) requirements/hashed.py requirements/$(DEVICE).txt > $(VENV)/$(DEVICE).txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --compile-bytecode -r $(VENV)/$(DEVICE).txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation \
		$(if $(filter cpu,$(DEVICE)),./requirements/vllm-metadata) -e .
	@$(BIN)/python -c "import torch"
	@touch $@

image: ## Build the trainer's image; with DEVICE=cuda the one for GPUs, which checks itself (minutes, 10 GB)
	$(call build_trainer,$(DEVICE))

extras: $(STAMP) ## Install what does not go with the rest: .venv-nethack, .venv-textworld, and .venv-verifiers of the chaos benchmark
	@for extra in nethack textworld verifiers; do \
		echo "Installing into .venv-$$extra"; \
		$(PYTHON) -m venv .venv-$$extra || exit 1; \
		$(BIN)/uv pip install --quiet --python .venv-$$extra/bin/python -e ".[$$extra]" || exit 1; \
	done

harnesses: ## Install agents of others into .harnesses, for the tests that run them unchanged (minutes, 3 GB); needs npm
	@mkdir -p .harnesses
	@cp requirements/harnesses/package.json requirements/harnesses/package-lock.json .harnesses/
	@cd .harnesses && npm install --no-audit --no-fund --loglevel=error
	@$(PYTHON) -m venv .harnesses/python
	@.harnesses/python/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement requirements/harnesses/python.txt
	@$(PYTHON) -m venv .harnesses/verifiers
	@.harnesses/verifiers/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement requirements/harnesses/verifiers.txt
	@rm -rf .harnesses/verifiers-source && git clone --quiet $(VERIFIERS) .harnesses/verifiers-source
	@git -C .harnesses/verifiers-source checkout --quiet $(VERIFIERS_COMMIT)

run: $(STAMP) ## Train the main job: an agent learns to find an object
	@echo "Training $(JOB); everything lands in runs/"
	@$(BIN)/turnmill run $(JOB)

test: $(STAMP) ## Run all tests but the slow ones
	@echo "Running the tests"
	@# pytest-xdist would start another process after a crash, and then wait without end.
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --max-worker-restart 0 \
		-m "not slow and not nightly and not e2e and not gpu" $(ARGS)

unit: $(STAMP) ## Run the unit tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit $(ARGS)

check: $(STAMP) ## Run what CI runs before the tests: ruff, mypy, import-linter, the docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/learning.py check
	$(BIN)/python benchmarks/nightly_tests.py check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

nightly: $(STAMP) ## Run what takes hours: the image for GPUs, the longest tests, then every example for a CPU, for docs/learning.md
	@export OMP_NUM_THREADS=1; status=0; \
	$(if $(ARGS),,if command -v $(firstword $(BUILD_IMAGE)) > /dev/null; then $(call build_trainer,cuda) || status=1; \
		else echo "No image for GPUs was built: install $(firstword $(BUILD_IMAGE)), or name another builder in BUILD_IMAGE."; fi; \
		$(BIN)/python benchmarks/nightly_tests.py run || status=1; $(BIN)/python benchmarks/nightly_tests.py page; \
		$(BIN)/python benchmarks/rl_chaos.py run --systems turnmill turnmill-environment verl $(patsubst .venv-%,%,$(wildcard .venv-verifiers)) || status=1; \
		$(BIN)/python benchmarks/rl_chaos.py cadence --every 60 10 --steps 100 || status=1; \
		$(BIN)/python benchmarks/rl_chaos.py cadence --every 3 --groups around --steps 40 --seeds 0 1 2 3 || status=1; \
		$(BIN)/python benchmarks/rl_chaos.py cadence --every 20 --groups centre --steps 30 --seeds 0 1 2 3 || status=1; \
		$(BIN)/python benchmarks/rl_chaos.py page;) \
	$(BIN)/python benchmarks/learning.py run $(ARGS) || status=1; \
	$(BIN)/python benchmarks/learning.py page; exit $$status

chaos: $(STAMP) ## Hurt small runs of turnmill and plain verl in several ways, and write what each fault cost (half an hour); ARGS= chooses others
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rl_chaos.py run $(or $(ARGS),--subset --systems turnmill verl)
	@$(BIN)/python benchmarks/rl_chaos.py page

docs: $(STAMP) ## Show the docs site at http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8000

mutants: $(STAMP) ## Change the core in small ways and see which changes no test notices: hours
	@test -x .venv-mutants/bin/cosmic-ray || { $(PYTHON) -m venv .venv-mutants \
		&& .venv-mutants/bin/pip install --quiet --no-deps --require-hashes --requirement requirements/mutants/packages.txt; }
	@.venv-mutants/bin/python benchmarks/mutants.py run $(ARGS)

crds: $(STAMP) ## Generate the custom resource definition and its reference
	$(BIN)/turnmill crd > manifests/crds/agenttrainingjobs.turnmill.dev.yaml
	cp manifests/crds/*.yaml charts/turnmill/files/crds/
	$(BIN)/python -m turnmill.jobs.reference > docs/jobs.md

dashboards: $(STAMP) ## Generate the boards of Grafana, and put them and the alerts into the charts
	$(BIN)/python -m turnmill.observability.dashboards manifests/dashboards
	mkdir -p charts/turnmill/files/dashboards charts/turnmill/files/alerts charts/turnmill-team/files/alerts
	cp manifests/dashboards/*.json charts/turnmill/files/dashboards/
	cp manifests/alerts/operator.yaml charts/turnmill/files/alerts/
	cp manifests/alerts/team.yaml charts/turnmill-team/files/alerts/

compatibility: $(STAMP) ## Generate the page of the features of other systems and their tests
	$(BIN)/python -m support.features

charts: ## Generate the READMEs of the charts; helm-docs must be in PATH
	helm-docs --chart-search-root charts --log-level=warning

lock: $(STAMP) ## Pin what the images and the tools of builds need, and write the hashes of all pinned packages
	@UV=$(BIN)/uv $(BIN)/python requirements/lock.py

audit: ## Compare all pinned packages with the index of advisories, which must be reachable
	@test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit \
		&& $(PYTHON) requirements/hashed.py requirements/build.txt > .venv-audit/build.txt \
		&& .venv-audit/bin/pip install --quiet --no-deps --require-hashes --requirement .venv-audit/build.txt; }
	@.venv-audit/bin/python requirements/audit.py requirements/cuda.txt requirements/cpu.txt requirements/build.txt

clean: ## Delete .venv; runs/ stays
	rm -rf $(VENV)
