#!/usr/bin/env bash
# Runs e2e/tests/codex.rs on a cluster of its own, which is removed if the test passes. `make e2e-codex` builds the images and
# calls it.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster in any case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-codex}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
finish() {
    local status=$?
    if [ "$status" = 0 ] && [ "${E2E_KEEP:-}" != 1 ]; then "${cluster[@]}" down; else
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
        echo "Logs of operators: target/tmp/e2e-logs" >&2
    fi
    exit "$status"
}
trap finish EXIT

cargo test --workspace --locked --test e2e --no-run
"${cluster[@]}" down > /dev/null # remains of a failed run
ETCD_FSYNC=off "${cluster[@]}" up
"${cluster[@]}" load target/images/{spillway,codex-agent}.tar
"${cluster[@]}" run kubectl apply --server-side -k crds > /dev/null
# The operator's binary is the one in the image.
built=$(realpath "target/$(rustc -vV | sed -n 's/^host: //p')/quick")
SPILLWAY_BINARY=$built/spillway SPILLWAY_PLUGIN=$built/kubectl-spillway \
    "${cluster[@]}" run cargo test --workspace --locked --test e2e -- --ignored codex::
