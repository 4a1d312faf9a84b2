#!/usr/bin/env bash
# tests/chart-lifecycle.sh on a cluster of its own, which is removed if all checks pass. The earlier chart has the operator of its commit,
# which is built here. `make chart-lifecycle` builds the other images and calls it.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster in any case.
# CHART_FROM: the commit with the earlier chart (default: the last one whose chart differs from this one's).
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

CHART_FROM=$(tests/chart-lifecycle.sh --from)
export CHART_FROM FROM_IMAGE=localhost/spillway/spillway:earlier
echo "building the operator of $CHART_FROM"
rm -rf target/earlier
mkdir -p target/earlier
# In a target folder of its own, so that no program of the earlier commit stands where this checkout's programs are expected.
git archive "$CHART_FROM" | tar -x -C target/earlier
make --no-print-directory -C target/earlier build PROFILE=quick
built=target/earlier/target/$(rustc -vV | sed -n 's/^host: //p')/quick
e2e/images/build.sh --out target/images/earlier --tag earlier --binary "$built/spillway" spillway
rm -rf target/earlier

"${cluster[@]}" down > /dev/null # remains of a failed run
ETCD_FSYNC=off "${cluster[@]}" up --helm4
"${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar target/images/earlier/spillway.tar
"${cluster[@]}" run tests/chart-lifecycle.sh
