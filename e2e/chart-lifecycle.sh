#!/usr/bin/env bash
# tests/chart-lifecycle.sh on a cluster of its own, which is removed if all checks pass. `make chart-lifecycle` builds the images and calls it.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster in any case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-chart}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
finish() {
    local status=$?
    if [ "$status" = 0 ] && [ "${E2E_KEEP:-}" != 1 ]; then "${cluster[@]}" down; else
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
    fi
    exit "$status"
}
trap finish EXIT

"${cluster[@]}" down > /dev/null # remains of a failed run
ETCD_FSYNC=off "${cluster[@]}" up --helm4
"${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar
"${cluster[@]}" run tests/chart-lifecycle.sh
