#!/usr/bin/env bash
# The chart and the whole system, on a real cluster. Called by `make e2e`. The cluster is removed when all passed, and
# kept for a look when something failed.
# CLUSTER: how to call the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster anyway.
# E2E_AGAIN=N: up to N tests that failed beside the others are run once more, by themselves; what passes then is named as
# unsteady, which is a fault to look for, and fails nothing. Default 0: whoever runs this by hand wants to know at once.
# E2E_LONG=1: also what is left out because it only takes longer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# A checkout's own cluster may be in use: tests have another one.
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-test}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
started=$(date +%s)
step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }

finish() {
    local status=$?
    if [ "$status" = 0 ] && [ "${E2E_KEEP:-}" != 1 ]; then
        "${cluster[@]}" down
    else
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A; logs of operators: target/tmp/e2e-logs" >&2
    fi
    exit "$status"
}
trap finish EXIT

step "building the tests"
# Of the whole workspace, as the unit tests were built: of one package alone its dependencies would be others.
cargo test --workspace --locked --test e2e --no-run

step "starting the cluster $SPILLWAY_CLUSTER"
# Two cores carry it all: without waiting for the disk at each write, what is slow is slow for a reason of ours.
"${cluster[@]}" down > /dev/null # what a failed run left
ETCD_FSYNC=off "${cluster[@]}" up
"${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar

step "the chart: lint, schema, rendering, accepted by the API server"
"${cluster[@]}" run tests/chart.sh

step "the whole system: operators as processes, each with a namespace of its own"
"${cluster[@]}" run kubectl apply --server-side -k crds > /dev/null
SPILLWAY_AUDIT_LOG=$("${cluster[@]}" audit-log)
# The operator as the image has it: what is not optimised at all takes the two cores from the cluster.
built=$(realpath "target/$(rustc -vV | sed -n 's/^host: //p')/quick")
SPILLWAY_BINARY=$built/spillway SPILLWAY_PLUGIN=$built/kubectl-spillway
export SPILLWAY_AUDIT_LOG SPILLWAY_BINARY SPILLWAY_PLUGIN
e2e() { "${cluster[@]}" run cargo test --workspace --locked --test e2e -- "$@"; }

# again LOG : what failed in it is run once more, by itself, if so much may.
unsteady=()
again() {
    local failed name
    mapfile -t failed < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$1")
    if [ "${#failed[@]}" = 0 ] || [ $((${#unsteady[@]} + ${#failed[@]})) -gt "${E2E_AGAIN:-0}" ]; then return 1; fi
    for name in "${failed[@]}"; do
        step "once more: $name"
        e2e --exact "$name" || return 1
        unsteady+=("$name")
    done
}
# steady LOG ARGUMENTS... : as e2e, with what it says in LOG too.
steady() {
    local log="$1"
    shift
    e2e "$@" 2>&1 | tee "$log" || again "$log"
}

# What a failed test left stays for reading, and no operator runs that would let it go. Tests' namespaces begin with t-.
clear_away() {
    local namespace name
    "${cluster[@]}" run kubectl get agents -A -o jsonpath='{range .items[*]}{.metadata.namespace} {.metadata.name}{"\n"}{end}' |
        { grep '^t-' || true; } > target/e2e-left
    while read -r namespace name; do
        "${cluster[@]}" run kubectl -n "$namespace" patch "agent/$name" --type=merge -p '{"metadata": {"finalizers": null}}' < /dev/null
    done < target/e2e-left
    for namespace in $(cut -d ' ' -f 1 target/e2e-left | sort -u); do
        "${cluster[@]}" run kubectl delete namespace "$namespace" --timeout=3m
    done
}

# Those that mostly wait, for up to ten minutes, do it beside the others.
waiting=(ten_minutes_without an_expired_token watches_half_a_minute_late)
e2e "${waiting[@]}" --test-threads 3 > target/e2e-waiting.log 2>&1 &
beside=$!
steady target/e2e-together.log --test-threads 4 --skip ::alone_ "${waiting[@]/#/--skip=}"
step "the tests that wait"
if wait "$beside"; then grep -E '^test |^test result' target/e2e-waiting.log; else cat target/e2e-waiting.log; again target/e2e-waiting.log; fi

step "what every other test would feel: one after the other, with the cluster to itself"
steady target/e2e-alone.log --test-threads 1 ::alone_
if [ "${E2E_LONG:-}" = 1 ]; then e2e --test-threads 1 --ignored ::alone_; fi

step "the documentation: links, commands, and its examples as the API server takes them"
"${cluster[@]}" run tests/docs.sh

if [ ${#unsteady[@]} != 0 ]; then clear_away; fi
# Helm takes over nothing that it did not make. That the CRDs go at once shows, too, that no test left an object behind.
"${cluster[@]}" run kubectl delete -k crds --timeout=2m > /dev/null

step "the demo, twice: the chart, the samples as they are shipped, Codex at work where npm can be reached"
e2e/demo.sh up
e2e/demo.sh up > target/demo-second.log
tail -n 3 target/demo-second.log

step "what the installed operator said"
if "${cluster[@]}" run kubectl -n spillway-system logs -l app.kubernetes.io/name=spillway --tail=-1 | grep -i forbidden; then
    echo "the chart's RBAC lacks something that the operator needs" >&2
    exit 1
fi
"${cluster[@]}" run kubectl delete -k config/samples --timeout=2m
left=$("${cluster[@]}" run kubectl get agents,pods -n demo -o name 2>/dev/null || true)
[ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }
[ ${#unsteady[@]} = 0 ] || printf 'Unsteady, for they failed once: %s\n' "${unsteady[@]}"
echo "e2e passed"
