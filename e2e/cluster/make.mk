# Targets of the local cluster, included by the Makefile at the root.
# CLUSTER_NAME=... selects another local cluster than the checkout's own. SPILLWAY_KUBECONFIG=... selects an existing cluster.
# BACKEND=kind: clusters of kind in a Docker engine (e2e/kind) instead of plain processes.
BACKEND ?= local
export SPILLWAY_BACKEND = $(BACKEND)
CLUSTER_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
CLUSTER := $(if $(CLUSTER_NAME),SPILLWAY_CLUSTER=$(CLUSTER_NAME) )$(CLUSTER_DIR)/cluster

.PHONY: cluster-packages cluster-build cluster-up cluster-down cluster-status cluster-run cluster-check cluster-test

cluster-packages: ## install the Debian packages that the cluster and the tests need
	@$(CLUSTER) packages

cluster-build: ## build the local cluster's programs (a quarter of an hour the first time, then nothing); WITH=dns,kwok,s3,gitea,helm4 for more
	$(CLUSTER) build $(if $(WITH),--with $(WITH))

cluster-up: ## start the local cluster; UP="--control-plane", UP="--dns --kwok 100" and so on
	$(CLUSTER) up $(UP)

cluster-down: ## stop the local cluster and remove its state
	$(CLUSTER) down

cluster-status: ## list the local cluster's components
	@$(CLUSTER) status

# CMD is passed through the environment, so that its quotes need no escapes. The exit status of make is only 0 or 2. For the
# status of CMD use e2e/cluster/cluster run.
cluster-run: export SPILLWAY_RUN_CMD = $(value CMD)
cluster-run: ## run a command in the local cluster: make -s cluster-run CMD="kubectl get nodes"
	@test -n "$$SPILLWAY_RUN_CMD" || { echo 'CMD is not set: make -s cluster-run CMD="kubectl get nodes"' >&2; exit 2; }
	@$(CLUSTER) run bash -c "$$SPILLWAY_RUN_CMD"

cluster-check: ## check that the local cluster behaves like a real one
	@$(CLUSTER) up --dns
	@$(if $(CLUSTER_NAME),SPILLWAY_CLUSTER=$(CLUSTER_NAME) )$(CLUSTER_DIR)/check.sh

cluster-test: ## test the cluster's own scripts: crashes, leftovers, two clusters at once, nothing left
	@$(CLUSTER_DIR)/test.sh
