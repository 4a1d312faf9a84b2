#!/usr/bin/env bash
# Runs tests that `make e2e` leaves out, because they need large images, a registry or another server, on a cluster of their own,
# which is removed if they pass. `make e2e-codex`, `make e2e-packages`, `make e2e-artifacts` and `make e2e-issues`
# build the images and call it.
# Usage: e2e/one-test.sh MODULE IMAGE...   a module of e2e/tests, and the images in target/images that it needs
# UP: options of `cluster up`, such as --s3.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster in any case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
module=${1:?name a module of e2e/tests}; shift
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-$module}
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
read -r -a up <<< "${UP:-}"
ETCD_FSYNC=off "${cluster[@]}" up "${up[@]}"
case "${UP:-}" in *--gitea*) SPILLWAY_GITEA_TOKEN=$("${cluster[@]}" gitea-token); export SPILLWAY_GITEA_TOKEN ;; esac
"${cluster[@]}" load target/images/spillway.tar "${@/#/target/images/}"
"${cluster[@]}" run e2e/crds.sh
# The operator's binary is the one in the image.
built=$(realpath "target/$(rustc -vV | sed -n 's/^host: //p')/quick")
SPILLWAY_BINARY=$built/spillway SPILLWAY_PLUGIN=$built/kubectl-spillway \
    "${cluster[@]}" run cargo test --workspace --locked --test e2e -- --ignored "$module::"
