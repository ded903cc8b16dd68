# Concertina. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
# Nothing asks git about a checkout that may belong to another user.
export GOFLAGS := $(GOFLAGS) -buildvcs=false
# Everything that can be made again lies here; CONCERTINA_CACHE lets several checkouts share it.
export CONCERTINA_CACHE ?= $(CURDIR)/.cache
BIN := $(CONCERTINA_CACHE)/bin
TOOLS := $(CONCERTINA_CACHE)/tools
RESULTS := $(CONCERTINA_CACHE)/results
export PYTHONPYCACHEPREFIX := $(CONCERTINA_CACHE)/pycache
# etcd and kube-apiserver for the integration tests, the same as in the local cluster.
export KUBEBUILDER_ASSETS := $(BIN)

# What the programs and images say that they are: `make build images CONCERTINA_VERSION=v1.2.3`.
export CONCERTINA_VERSION ?= dev

# Packages that are built or tested at the same time.
PARALLEL ?= 2
NODES ?= 3
GPUS ?= 4
# Further arguments of helm for `make install`.
HELM_ARGS ?=
# The Python of the targets that want PyTorch and a GPU.
PYTHON ?= python3
# The same from another folder.
PYTHON_FROM_HERE = $(if $(findstring /,$(PYTHON)),$(abspath $(PYTHON)),$(PYTHON))
# Further arguments of the benches that say BENCH_ARGS=... in their help.
BENCH_ARGS ?=
# local, kind or existing (the current kubeconfig).
export E2E_CLUSTER ?= local

CLUSTER := $(GO) run ./hack/cluster
GOTESTSUM = $(TOOLS)/gotestsum --format standard-quiet --jsonfile $(RESULTS)/$(1).json -- $(2) | { grep -v "no test files" || true; }
# The machine of the rendezvous has no goroutines: a race detector finds nothing there, and would cost its histories
# three times as long.
HISTORY_PACKAGE = ./internal/rendezvous
# Go begins packages in the order that they are named in, and each only once: the longest go first, so that none of them is left alone at
# the end, with one processor idle.
UNIT_PACKAGES = ./internal/controller ./internal/checkpoint $$($(GO) list ./... | grep -v -e '/concertina/test/' -e '/internal/rendezvous$$') ./test/e2e/ledger
INTEGRATION_PACKAGES = ./test/integration ./test/rendezvous ./test/storage $$($(GO) list ./test/... | grep -v '/test/e2e')

##@ General

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## Install the Debian packages that are missing (as root).
	@hack/deps.sh

.PHONY: deps-frameworks
deps-frameworks: ## Install PyTorch, JAX and the frameworks around them, pinned, into the cache (5 GB).
	@hack/frameworks/install.sh >/dev/null

.PHONY: clean
clean: ## Remove what was built into bin, and test results.
	rm -rf bin $(RESULTS)

.PHONY: clean-cache
clean-cache: clean cluster-down ## Remove everything that was built or downloaded, the cluster's programs and images too.
	rm -rf --one-file-system $(CONCERTINA_CACHE)

##@ Development

.PHONY: generate
generate: tools ## Generate deepcopy, apply configurations, CRD, roles, chart copies and RPC code.
	@hack/generate/generate.sh

.PHONY: fmt
fmt: tools-lint ## Format Go code and protocols.
	@$(TOOLS)/golangci-lint fmt
	@$(TOOLS)/buf format -w

.PHONY: vet
vet: ## Run go vet.
	@$(GO) vet ./...

.PHONY: build
build: ## Build bin/operator, bin/agent and bin/kubectl-concertina.
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags "-s -w -X github.com/concertina-dev/concertina/internal/release.version=$(CONCERTINA_VERSION)" -o bin/operator ./cmd/operator
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X github.com/concertina-dev/concertina/internal/release.version=$(CONCERTINA_VERSION)" -o bin/agent ./cmd/agent
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X github.com/concertina-dev/concertina/internal/release.version=$(CONCERTINA_VERSION)" -o bin/kubectl-concertina ./cmd/kubectl-concertina

.PHONY: images
images: ## Build the container images, without Docker, into .cache/images.
	@$(GO) run ./hack/images build

.PHONY: package
package: ## Build the wheel and the sdist of the Python package into bin/python.
	@hack/package/build.sh bin/python

.PHONY: tools
tools:
	@hack/tools/build.sh hack/tools

.PHONY: tools-lint
tools-lint: tools
	@hack/tools/build.sh hack/lint

##@ Checks

.PHONY: test
test: ## Everything: lint, verify, the model of worlds, unit, integration and short end-to-end tests.
	@hack/phases.sh lint verify verify-model test-unit prepare test-integration test-e2e

# Downloading Debian packages waits for the network, building Kubernetes for the processors.
.PHONY: prepare
prepare: ## Build the cluster's programs and the images, both at once.
	@$(CLUSTER) build >/dev/null & programs=$$!; \
	$(GO) run ./hack/images build || { wait $$programs; exit 1; }; \
	wait $$programs

.PHONY: verify
verify: tools ## Fail when generated files are stale.
	@hack/generate/generate.sh --check

.PHONY: verify-model
verify-model: ## Check the model of worlds that change (formal/) with spin.
	@hack/verify-model.sh

.PHONY: lint
lint: tools-lint lint-python lint-chart ## Lint Go code, protocols, Python and the chart.
	@$(TOOLS)/golangci-lint run
	@$(TOOLS)/buf lint

.PHONY: lint-python
lint-python:
	@command -v pyflakes3 >/dev/null || { echo "lint: pyflakes3 is missing: run 'make deps'" >&2; exit 1; }
	@python3 -m compileall -q python examples hack
	@pyflakes3 python examples hack
	@hack/lint/python/types.sh

.PHONY: lint-chart
lint-chart:
	@$(CLUSTER) build helm >/dev/null
	@$(BIN)/helm lint --quiet --strict charts/concertina

.PHONY: lint-api
lint-api: ## Lint api/ by the conventions of the Kubernetes API (kube-api-linter).
	@hack/lint/api.sh

# A Python that hangs ends with the stacks of all its threads, and with what it has started.
PYTHON_WITHIN = timeout --signal=ABRT --kill-after=10 $(1) python3 -X faulthandler

.PHONY: test-unit
test-unit: tools ## Run the tests of single packages, with the race detector, and those of the Python SDK.
	@mkdir -p $(RESULTS)
	@$(call GOTESTSUM,unit,-race -p $(PARALLEL) $(UNIT_PACKAGES))
	@$(call GOTESTSUM,histories,$(HISTORY_PACKAGE))
	@cd python && $(call PYTHON_WITHIN,--foreground 10m) -m unittest discover --buffer -s tests -t .

.PHONY: test-integration
test-integration: tools ## Run the tests with a real API server, those of the chart, and those with PyTorch.
	@mkdir -p $(RESULTS)
	@$(CLUSTER) build etcd kube-apiserver kubectl helm podgroups.yaml >/dev/null
	@hack/tools/build.sh hack/s3
	@$(call GOTESTSUM,integration,-race -p $(PARALLEL) -timeout 15m $(INTEGRATION_PACKAGES))
	@$(GO) run ./hack/images run -- $(call PYTHON_WITHIN,25m) -m unittest discover --buffer -s /src/python/tests_torch -t /src/python
	@$(GO) run ./hack/images run -- env TEST_DEVICE=cpu $(call PYTHON_WITHIN,5m) -m unittest discover --buffer -p test_training.py -s /src/python/tests_gpu -t /src/python

.PHONY: test-frameworks
test-frameworks: deps-frameworks ## Train with each framework, with torchrun and with the loop on the newest PyTorch while worlds change (FRAMEWORKS="Lightning Jax").
	@cd python && $(CONCERTINA_CACHE)/frameworks/bin/python -m unittest discover -s tests_frameworks -t .

# Which files of python/tests_gpu; empty for all.
GPU_TESTS ?=

.PHONY: test-gpu
test-gpu: ## Test the SDK on a machine with a GPU, one of which is enough (PYTHON=one with PyTorch, GPU_TESTS="test_staging ...").
	@cd python && $(PYTHON_FROM_HERE) -W ignore -m tests_gpu $(GPU_TESTS)

.PHONY: test-storage
test-storage: ## Test checkpoints in a folder and on a real S3 server (STORAGE_KILLS=200 processes are killed on each).
	@mkdir -p $(RESULTS)
	@hack/tools/build.sh hack/s3
	@$(call GOTESTSUM,storage,-race -timeout 60m ./test/storage)

.PHONY: test-e2e
test-e2e: ## Run the short end-to-end tests (E2E_CLUSTER=local, kind or existing).
	@mkdir -p $(RESULTS)
	@hack/e2e.sh short

# The frameworks whose examples run; all without.
FRAMEWORK_EXAMPLES ?= .

.PHONY: test-frameworks-cluster
test-frameworks-cluster: ## Run the frameworks' examples on the local cluster while their worlds change (FRAMEWORK_EXAMPLES="Lightning|JAX").
	@hack/e2e.sh frameworks --focus "$(FRAMEWORK_EXAMPLES)"

# How long many simulated clusters are watched (FLEET_SIMULATION_SEED=n replays one).
FLEET_SIMULATION ?= 30m

.PHONY: test-simulation
test-simulation: ## Run simulated clusters of many jobs from random seeds (FLEET_SIMULATION=30m).
	@FLEET_SIMULATION=$(FLEET_SIMULATION) $(GO) test ./internal/controller -run '^TestManyJobsWhateverHappens$$' -timeout 24h -v | grep -v '^ *\(=== \|--- PASS: .*/\)'

# How many drawn clusters are looked at.
CLUSTERS ?= 50000

.PHONY: test-clusters
test-clusters: ## Plan drawn clusters in which several gangs take, and look at the plans after that (CLUSTERS=50000).
	@DRAWN_CLUSTERS=$(CLUSTERS) $(GO) test ./internal/allocation -run '^TestTheNextPlanGoesOn$$' -count=1 -timeout 24h -v | grep -v '^ *=== '

# How many random histories of each kind are played.
HISTORIES ?= 50000

.PHONY: test-histories
test-histories: ## Play random histories of jobs whose worlds change while everything fails (HISTORIES=50000 of each kind).
	@$(GO) test $(HISTORY_PACKAGE) -timeout 24h -rapid.checks=$(HISTORIES)

# How long one job with the real rendezvous and the real agents is simulated (WORLD_SIMULATION_SEED=n replays one).
WORLD_SIMULATION ?= 30m

.PHONY: test-worlds
test-worlds: ## Simulate jobs, from operator to agent, from random seeds: one world, no sample twice, promises 2, 3, 5, 8 and 9 (WORLD_SIMULATION=30m).
	@WORLD_SIMULATION=$(WORLD_SIMULATION) $(GO) test ./internal/controller -run '^TestOneWorldWhateverHappens$$' -timeout 24h -v | grep -v '^ *\(=== \|--- PASS: .*/\)'

# How many operators are killed in test-crashes.
KILLS ?= 1000

.PHONY: test-crashes
test-crashes: tools ## Kill real operators' rendezvous in barriers, publishes, recoveries and adoptions: a round has one world, and no step is lost (KILLS=1000).
	@$(CLUSTER) build etcd kube-apiserver kubectl >/dev/null
	@KILLS=$(KILLS) $(GO) test ./test/rendezvous -run '^TestKilledWhileWorldsChange$$' -count=1 -timeout 24h -v | grep -v '^ *\(=== \|--- PASS: .*/\)'

# The folder with published workloads and results.
REPLAY_DATA ?=

.PHONY: test-replay
test-replay: ## Replay published workloads: the results must be those published (REPLAY_DATA=folder, docs/replay.md).
	@[[ -n "$(REPLAY_DATA)" ]] || { echo "test-replay: REPLAY_DATA=folder says where the published workloads are (docs/replay.md)" >&2; exit 1; }
	@REPLAY_DATA=$(abspath $(REPLAY_DATA)) $(GO) test ./internal/replay/traces -count=1 -run Published -v | grep -v '^ *=== '

.PHONY: fit-speed
fit-speed: ## Print how far estimated speeds are from those of measured programs (REPLAY_DATA=folder, docs/speed.md).
	@[[ -n "$(REPLAY_DATA)" ]] || { echo "fit-speed: REPLAY_DATA=folder says where the measured programs are (docs/replay.md)" >&2; exit 1; }
	@REPLAY_DATA=$(abspath $(REPLAY_DATA)) $(GO) test ./internal/speed -count=1 -run Measured -v | grep -v '^ *=== '

# How long each fuzz target runs.
FUZZTIME ?= 2m

.PHONY: test-fuzz
test-fuzz: ## Send random messages to everything that strangers, workers and programs speak to (FUZZTIME=2m each).
	@FUZZTIME=$(FUZZTIME) GO=$(GO) hack/fuzz.sh

# How many minutes of processors each fuzz target runs in test-long.
FUZZ_CPU_MINUTES ?= 20

.PHONY: test-fuzz-long
test-fuzz-long: ## Send them as many as each takes in 20 minutes of processors (FUZZ_CPU_MINUTES=20 each).
	@FUZZ_CPU_MINUTES=$(FUZZ_CPU_MINUTES) GO=$(GO) hack/fuzz.sh

# How many histories the GPT lives through; GPT_SEED=n replays one, GPT_SIZE=steps,width,layers makes it another one.
GPT_HISTORIES ?= 10

.PHONY: test-gpt
test-gpt: ## Train a GPT of a few million parameters, whose world changes at random, and compare its losses (GPT_HISTORIES=10).
	@$(GO) run ./hack/images run -- env GPT_HISTORIES=$(GPT_HISTORIES) $(if $(GPT_SEED),GPT_SEED=$(GPT_SEED)) $(if $(GPT_SIZE),GPT_SIZE=$(GPT_SIZE)) \
		python3 -W ignore -m unittest discover -s /src/python/tests_torch -t /src/python -p test_gpt.py

.PHONY: test-fsdp
test-fsdp: ## Train a model that fully_shard() cuts, with real agents, in worlds of 3, 2 and 4, and of 2 from the storage: to the bit (as root).
	@$(CLUSTER) build etcd kube-apiserver kubectl >/dev/null
	@$(GO) run ./hack/images build pytorch-digits >/dev/null
	@$(GO) test -tags pytorch ./test/rendezvous -run '^TestModelInShardsWithRealAgents$$' -count=1 -timeout 30m -v | grep -v '^ *=== '

# How many campaigns there are on each kind of data; CAMPAIGN_SEED=n plays one of each.
CAMPAIGNS ?= 2

.PHONY: test-once
test-once: ## Train with real agents whose workers come, leave and are killed at random, on data with a length and on streams: each sample once (as root; CAMPAIGNS=2).
	@$(CLUSTER) build etcd kube-apiserver kubectl >/dev/null
	@$(GO) run ./hack/images build pytorch-digits >/dev/null
	@CAMPAIGNS=$(CAMPAIGNS) $(if $(CAMPAIGN_SEED),CAMPAIGN_SEED=$(CAMPAIGN_SEED)) $(GO) test -tags pytorch ./test/rendezvous -run '^TestEachSampleOnceWithRealAgents$$' -count=1 -timeout 24h -v | grep -v '^ *=== '

.PHONY: verify-model-long
verify-model-long: ## Check the model of worlds with its larger bounds too.
	@hack/verify-model.sh --all

.PHONY: test-long
test-long: tools verify-model-long test-simulation test-worlds test-clusters test-histories test-crashes test-fuzz-long test-gpt test-fsdp test-once test-frameworks-cluster ## Run the long tests: the larger model, repetitions and campaigns, the simulation, histories, fuzzing.
	@mkdir -p $(RESULTS)
	@$(CLUSTER) build etcd kube-apiserver kubectl >/dev/null
	@$(call GOTESTSUM,integration-long,-timeout 30m ./test/integration -ginkgo.label-filter=long)
	@hack/e2e.sh long

##@ Cluster

.PHONY: cluster-up
cluster-up: ## Start the local cluster, without Docker (NODES=3 GPUS=4); prints its kubeconfig.
	@$(CLUSTER) up --nodes $(NODES) --gpus $(GPUS)

.PHONY: cluster-down
cluster-down: ## End the local cluster, or what is left of one that crashed.
	@$(CLUSTER) down

.PHONY: install
install: ## Install the operator into the current kubeconfig's cluster with Helm (HELM_ARGS=...).
	@$(CLUSTER) build helm >/dev/null
	$(BIN)/helm upgrade --install concertina charts/concertina --namespace concertina-system --create-namespace --wait $(HELM_ARGS)

.PHONY: uninstall
uninstall: ## Remove the operator from the current kubeconfig's cluster; jobs and their definition stay.
	@$(CLUSTER) build helm >/dev/null
	$(BIN)/helm uninstall concertina --namespace concertina-system

##@ Show

.PHONY: demo
demo: ## Bring a cluster up, install the operator, train with PyTorch and watch it.
	@$(GO) run ./hack/demo

.PHONY: bench-start
bench-start: ## Measure the time from apply to the first step, beside pods made by hand and stock torchrun.
	@$(GO) run ./hack/bench start

.PHONY: bench-resize
bench-resize: ## Measure the pauses when a world changes, beside stock torchrun (BENCH_ARGS=...).
	@$(GO) run ./hack/bench resize $(BENCH_ARGS)

.PHONY: bench-reclaim
bench-reclaim: ## Measure how soon a gang gets devices that another job has grown over, beside stock preemption (BENCH_ARGS=...).
	@$(GO) run ./hack/bench reclaim $(BENCH_ARGS)

.PHONY: bench-scale
bench-scale: ## Measure the operator in a large cluster, and beside JobSet and training-operator (BENCH_ARGS=...).
	@$(CLUSTER) build etcd kube-apiserver kube-controller-manager >/dev/null
	@$(GO) run ./hack/bench scale $(BENCH_ARGS)

.PHONY: bench-rendezvous
bench-rendezvous: ## Measure the rendezvous with up to 10,000 simulated agents, beside torchrun's with 16 (BENCH_ARGS=...).
	@$(GO) run ./hack/images build pytorch-digits >/dev/null
	@$(GO) run ./hack/images run -- python3 -W ignore /src/python/benchmarks/ranked.py 16
	@$(GO) run ./hack/bench rendezvous $(BENCH_ARGS)

.PHONY: bench-peers
bench-peers: ## Measure what a member that is killed or comes costs, beside torchft and torchrun, without a cluster (as root; BENCH_ARGS=...).
	@$(CLUSTER) build etcd kube-apiserver podgroups.yaml >/dev/null
	@$(GO) run ./hack/images build pytorch-digits >/dev/null
	@$(GO) run ./hack/bench peers $(BENCH_ARGS)

.PHONY: bench-footprint
bench-footprint: ## Measure what snapshots and agents hold in memory, with four members on four nodes (as root; BENCH_ARGS="-mib 100").
	@$(CLUSTER) build etcd kube-apiserver podgroups.yaml >/dev/null
	@$(GO) run ./hack/images build pytorch-digits >/dev/null
	@$(GO) run ./hack/bench footprint $(BENCH_ARGS)

.PHONY: bench-churn
bench-churn: ## Compare elastic jobs with others, in simulation, on recorded nodes that come and go (REPLAY_DATA=folder, docs/replay.md).
	@[[ -n "$(REPLAY_DATA)" ]] || { echo "bench-churn: REPLAY_DATA=folder says where the recorded nodes are (docs/replay.md)" >&2; exit 1; }
	@$(GO) run ./hack/bench churn -data $(abspath $(REPLAY_DATA)) $(BENCH_ARGS)

.PHONY: tune
tune: ## Try other constants of the planner on generated workloads (BENCH_ARGS="-seeds 3 -first 100"; docs/fleet.md).
	@$(GO) run ./hack/bench tune $(BENCH_ARGS)

.PHONY: bench-replay
bench-replay: ## Compare the planner, in simulation, with published results (REPLAY_DATA=folder, BENCH_ARGS=..., docs/replay.md).
	@[[ -n "$(REPLAY_DATA)" ]] || { echo "bench-replay: REPLAY_DATA=folder says where the published workloads are (docs/replay.md)" >&2; exit 1; }
	@$(GO) run ./hack/bench replay -data $(abspath $(REPLAY_DATA)) $(BENCH_ARGS)

.PHONY: bench-snapshot
bench-snapshot: ## Measure what training loses by a snapshot, beside torch.save and torch.distributed.checkpoint.
	@$(GO) run ./hack/images build pytorch-digits >/dev/null
	@for mib in 64 1024; do $(GO) run ./hack/images run -- python3 -W ignore /src/python/benchmarks/stall.py $$mib /tmp; done

.PHONY: bench-transfer
bench-transfer: ## Measure how a state comes from other workers and from a storage, beside bare TLS and cat (BENCH_ARGS="-mib 1024 -times 5").
	@$(GO) run ./hack/bench transfer $(BENCH_ARGS)

.PHONY: bench-loop
bench-loop: ## Measure what the loop of concertina.torch costs a step, beside DistributedDataParallel.
	@$(GO) run ./hack/images build pytorch-digits >/dev/null
	@$(GO) run ./hack/images run -- python3 -W ignore /src/python/benchmarks/loop.py

.PHONY: bench-gpu
bench-gpu: ## Measure snapshots, restores, the loop and groups on a machine with a GPU (PYTHON=..., BENCH_ARGS="loop groups 64").
	@cd python && $(PYTHON_FROM_HERE) -W ignore benchmarks/gpu.py $(BENCH_ARGS)

.PHONY: bench-gate
bench-gate: ## Measure what the gate costs a step, in Go and in Python, and what the whole of a step does in Python.
	@$(GO) test ./pkg/elastic -run '^$$' -bench Gate -benchtime 1s | awk '/^BenchmarkGate/ {print "gate_go_ns", $$3, "ns"}'
	@python3 python/benchmarks/gate.py
