#!/usr/bin/env bash
# The benchmarks of docs/benchmarks.md, on a cluster of their own. Called by `make bench`, which builds the release binary
# and the images. The cluster is removed afterwards.
# Arguments: the benchmarks to run (failover, burst, fleet, writes); none: all.
# CLUSTER: how to call the local cluster (default: e2e/cluster/cluster). SPILLWAY_BINARY: another binary to measure.
# BENCH_KEEP=1: keep the cluster for a look.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# A checkout's own cluster may be in use: benchmarks have another one.
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-bench}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
host=$(rustc -vV | sed -n 's/^host: //p')
SPILLWAY_BINARY=$(realpath "${SPILLWAY_BINARY:-target/$host/release/spillway}")
export SPILLWAY_BINARY
started=$(date +%s)
step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }

for file in "$SPILLWAY_BINARY" target/images/demo-agent.tar; do
    [ -f "$file" ] || { echo "$file is missing: run \`make images\`, or \`make bench\`, which does" >&2; exit 1; }
done

finish() {
    local status=$?
    if [ "${BENCH_KEEP:-}" = 1 ]; then
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
    else
        "${cluster[@]}" down
    fi
    [ "$status" = 0 ] || echo "Logs of operators: target/bench/logs" >&2
    exit "$status"
}

step "building the benchmarks (optimised; some minutes the first time)"
cargo bench --locked --features e2e --bench fleet --no-run

trap finish EXIT
step "starting the cluster $SPILLWAY_CLUSTER, with 20 KWOK nodes"
"${cluster[@]}" up --kwok 20
"${cluster[@]}" load target/images/demo-agent.tar
"${cluster[@]}" run kubectl apply --server-side -k crds > /dev/null

step "measuring $SPILLWAY_BINARY"
SPILLWAY_AUDIT_LOG=$("${cluster[@]}" audit-log) "${cluster[@]}" run cargo bench --locked --features e2e --bench fleet -- "$@"
