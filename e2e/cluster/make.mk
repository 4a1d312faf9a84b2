# Targets of the local cluster, included by the Makefile at the root.
# CLUSTER_NAME=... chooses another cluster than the checkout's own; SPILLWAY_KUBECONFIG=... one that runs elsewhere.
CLUSTER_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
CLUSTER := $(if $(CLUSTER_NAME),SPILLWAY_CLUSTER=$(CLUSTER_NAME) )$(CLUSTER_DIR)/cluster

.PHONY: cluster-packages cluster-build cluster-up cluster-down cluster-status cluster-run cluster-check cluster-test

cluster-packages: ## install the Debian packages that the cluster and the tests need
	@$(CLUSTER) packages

cluster-build: ## build what the local cluster needs (a quarter of an hour the first time, then nothing); WITH=dns,kwok for more
	$(CLUSTER) build $(if $(WITH),--with $(WITH))

cluster-up: ## start the local cluster; UP="--control-plane", UP="--dns --kwok 100" and so on
	$(CLUSTER) up $(UP)

cluster-down: ## stop it and remove all of it
	$(CLUSTER) down

cluster-status: ## what runs
	@$(CLUSTER) status

# CMD goes through the environment, so that its quotes need no care. make itself can only say 0 or 2:
# any failure of CMD makes it fail; for the very status use e2e/cluster/cluster run.
cluster-run: export SPILLWAY_RUN_CMD = $(value CMD)
cluster-run: ## run a command in it: make -s cluster-run CMD="kubectl get nodes"
	@test -n "$$SPILLWAY_RUN_CMD" || { echo 'which command? make -s cluster-run CMD="kubectl get nodes"' >&2; exit 2; }
	@$(CLUSTER) run bash -c "$$SPILLWAY_RUN_CMD"

cluster-check: ## prove that it behaves like a cluster
	@$(CLUSTER) up --dns
	@$(if $(CLUSTER_NAME),SPILLWAY_CLUSTER=$(CLUSTER_NAME) )$(CLUSTER_DIR)/check.sh

cluster-test: ## test the cluster's own scripts: crashes, leftovers, two side by side, nothing left
	@$(CLUSTER_DIR)/test.sh
