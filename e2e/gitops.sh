#!/usr/bin/env bash
# Argo CD's engine syncs the operator and the objects of a team from a git server to a real API server, on a cluster of its own,
# which is removed if the test passes. `make e2e-gitops` builds the images and calls it.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster in any case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-gitops}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
finish() {
    local status=$?
    if [ "$status" = 0 ] && [ "${E2E_KEEP:-}" != 1 ]; then "${cluster[@]}" down; else
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
    fi
    exit "$status"
}
trap finish EXIT

# The cluster has no network, so the test is built before.
test=$PWD/target/gitops.test
(cd tests/gitops && PATH="$PATH:/usr/local/go/bin" GOTOOLCHAIN=auto go test -c -o "$test" .)
"${cluster[@]}" down > /dev/null # remains of a failed run
ETCD_FSYNC=off "${cluster[@]}" up
"${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar
# shellcheck disable=SC2016  # the cluster sets KUBECONFIG
"${cluster[@]}" run bash -c 'cd tests/gitops && GITOPS_KUBECONFIG=$KUBECONFIG exec "$0" -test.v -test.run "^TestSync$"' "$test"
