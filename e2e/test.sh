#!/usr/bin/env bash
# The chart and the whole system, on two real clusters: one for tests that run in parallel, and one for tests that would disturb
# the others. `make e2e` calls it. The clusters are removed if all tests pass, and kept for inspection if one fails.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the clusters in any case.
# E2E_AGAIN=N: run up to N tests that failed in parallel once more, alone. A test that then passes is reported as unsteady,
# which is a fault to look for, and does not fail the run. Default 0: in a run by hand every failure counts.
# E2E_LONG=1: also run the tests that are left out because they take long (make e2e-night).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The checkout's own cluster may be in use, so tests have clusters of their own.
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-test}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
started=$(date +%s)
step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }
shared=$SPILLWAY_CLUSTER lonely=$SPILLWAY_CLUSTER-alone
# on CLUSTER COMMAND... : run the command with that cluster
on() { SPILLWAY_CLUSTER=$1 "${@:2}"; }

finish() {
    local status=$?
    if [ "$status" = 0 ] && [ "${E2E_KEEP:-}" != 1 ]; then
        on "$shared" "${cluster[@]}" down
        on "$lonely" "${cluster[@]}" down
    else
        printf 'The cluster is kept: SPILLWAY_CLUSTER=%s e2e/cluster/cluster run kubectl get all -A\n' "$shared" "$lonely" >&2
        echo "Logs of operators: target/tmp/e2e-logs" >&2
    fi
    exit "$status"
}
trap finish EXIT

# A node with a full disk starts no pod, and every test would wait for its pods.
free=$(df --output=avail -BG . /var/lib | tail -n +2 | sort -n | head -1 | tr -d ' G')
[ "$free" -ge 8 ] || { echo "the tests on clusters need 8 GB of free disk space, and $free GB are free. Remove files: target/tmp and old builds in target/ are not needed" >&2; exit 1; }

step "building the tests"
# Build the whole workspace, like the unit tests: for one package alone Cargo would build the dependencies again.
cargo test --workspace --locked --test e2e --no-run

step "starting the clusters $shared and $lonely"
# As in OpenShift: who makes an object that blocks the deletion of its owner needs a right to the owner's finalizers.
[ "${E2E_LONG:-}" != 1 ] || export APISERVER_FLAGS="${APISERVER_FLAGS:-} --enable-admission-plugins=OwnerReferencesPermissionEnforcement"
# Two cores carry all processes. Without the wait for the disk at each write, a slow test has a cause in our code.
for name in "$shared" "$lonely"; do
    on "$name" "${cluster[@]}" down > /dev/null # remains of a failed run
    ETCD_FSYNC=off on "$name" "${cluster[@]}" up
    on "$name" "${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar target/images/git-agent.tar target/images/attack-agent.tar
    on "$name" "${cluster[@]}" run e2e/crds.sh
done

step "the chart: lint, schema, rendering, accepted by the API server"
"${cluster[@]}" run tests/chart.sh
"${cluster[@]}" run make --no-print-directory chart-conform

step "the CRDs: from v1alpha1 to a v1beta1 with a made-up field, and back"
"${cluster[@]}" run tests/storage-migration.sh

step "the whole system: operators as processes, each with a namespace of its own"
# In a run with the long tests the operators have the rights that the chart gives, and no others.
rights=$PWD/target/e2e-rights
for name in "$shared" "$lonely"; do
    [ "${E2E_LONG:-}" != 1 ] || on "$name" "${cluster[@]}" run e2e/rights.sh grant "$rights/$name"
done
# The operator's binary is the one in the image: an unoptimised one would take too much of the two cores.
built=$(realpath "target/$(rustc -vV | sed -n 's/^host: //p')/quick")
SPILLWAY_BINARY=$built/spillway SPILLWAY_PLUGIN=$built/kubectl-spillway
export SPILLWAY_BINARY SPILLWAY_PLUGIN
e2e() {
    local own=$rights/$SPILLWAY_CLUSTER accounts=()
    [ "${E2E_LONG:-}" != 1 ] ||
        accounts=("SPILLWAY_CONTROLLER_KUBECONFIG=$own/controller.kubeconfig" "SPILLWAY_GATEWAY_KUBECONFIG=$own/gateway.kubeconfig")
    SPILLWAY_AUDIT_LOG=$("${cluster[@]}" audit-log) "${cluster[@]}" run env "${accounts[@]}" cargo test --workspace --locked --test e2e -- "$@"
}

# again LOG [clean] : runs the failed tests of LOG once more, alone, if E2E_AGAIN allows it. clean: what they left is removed first, which
# is possible if no other test runs on the cluster.
unsteady=()
again() {
    local failed name
    mapfile -t failed < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$1")
    if [ "${#failed[@]}" = 0 ] || [ $((${#unsteady[@]} + ${#failed[@]})) -gt "${E2E_AGAIN:-0}" ]; then return 1; fi
    if [ "${2:-}" = clean ]; then clear_away; fi
    for name in "${failed[@]}"; do
        step "once more: $name"
        e2e --exact "$name" || return 1
        unsteady+=("$name")
    done
}
# told PROCESS LOG [clean] : waits for the tests that write LOG, prints their results, and runs failed ones once more.
told() {
    if wait "$1"; then grep -E '^test |^test result' "$2"; else cat "$2" && again "$2" "${3:-}"; fi
}

# Removes the namespaces of failed tests, which are kept for inspection; their names begin with t-. No operator runs that would remove
# the finalizers of their objects.
clear_away() {
    local namespace kind name left
    "${cluster[@]}" run kubectl get agents,agentpools,breakers,budgets,toolsets,workitems,workqueues -A \
        -o jsonpath='{range .items[?(@.metadata.finalizers)]}{.metadata.namespace} {.kind} {.metadata.name}{"\n"}{end}' |
        { grep '^t-' || true; } > target/e2e-left
    while read -r namespace kind name; do
        "${cluster[@]}" run kubectl -n "$namespace" patch "$kind/$name" --type=merge -p '{"metadata": {"finalizers": null}}' < /dev/null > /dev/null
    done < target/e2e-left
    mapfile -t left < <("${cluster[@]}" run kubectl get namespaces -o name | grep '^namespace/t-')
    [ "${#left[@]}" = 0 ] || "${cluster[@]}" run kubectl delete "${left[@]}" --timeout=3m
}

# Tests that mostly wait, for up to ten minutes, run in parallel with the others, and so do tests on a cluster of their own. Four threads
# keep two cores busy. With six or eight, pods start too slowly for some tests, and the tests on the other cluster end later. Those with
# thirty agents wait for each other.
waiting=(ten_minutes_without an_expired_token thirty rollouts:: away_for_longer come_back_in_time silent_agent replaced_later_and_later
    an_unchanged_namespace a_new_authority)
e2e "${waiting[@]}" --test-threads 3 > target/e2e-waiting.log 2>&1 &
waits=$!
on "$lonely" e2e --test-threads 1 ::alone_ > target/e2e-alone.log 2>&1 &
alone=$!
e2e --test-threads 4 --skip ::alone_ "${waiting[@]/#/--skip=}" 2>&1 | tee target/e2e-together.log || again target/e2e-together.log
step "the tests that wait"
told $waits target/e2e-waiting.log
step "the tests that would disturb others: one after the other, on a cluster of their own"
on "$lonely" told $alone target/e2e-alone.log clean
if [ "${E2E_LONG:-}" = 1 ]; then
    on "$lonely" e2e --test-threads 1 --ignored ::alone_
    e2e --test-threads 2 --ignored ::long_
fi
if [ "${E2E_LONG:-}" = 1 ]; then
    cp "$(on "$lonely" "${cluster[@]}" audit-log)" "$rights/$lonely/audit.log"
    "${cluster[@]}" run e2e/rights.sh revoke "$rights/$shared"
fi
on "$lonely" "${cluster[@]}" down

step "the documentation: links, commands, and its examples as the API server takes them"
"${cluster[@]}" run tests/docs.sh

if [ ${#unsteady[@]} != 0 ]; then clear_away; fi
# Helm takes over no object that it did not make. If the CRDs are deleted at once, no test has left an object.
"${cluster[@]}" run kubectl delete -k crds --timeout=2m > /dev/null

step "the demo, twice: the chart, the shipped samples, Codex at work if npm can be reached"
e2e/demo.sh up
e2e/demo.sh up > target/demo-second.log
tail -n 3 target/demo-second.log

step "the log of the installed operator"
"${cluster[@]}" run e2e/refused-nothing.sh
if [ "${E2E_LONG:-}" = 1 ]; then
    step "the rights of the chart: each is used, and none is missing"
    e2e/rights.sh judge "$rights/$shared" "$("${cluster[@]}" audit-log)" "$rights/$lonely/audit.log"
fi
"${cluster[@]}" run kubectl delete -k config/samples --timeout=2m
remains=$("${cluster[@]}" run kubectl get agents,pods -n demo -o name 2>/dev/null || true)
[ -z "$remains" ] || { echo "left behind: $remains" >&2; exit 1; }
[ ${#unsteady[@]} = 0 ] || printf 'Unsteady: failed once, then passed alone: %s\n' "${unsteady[@]}"
echo "e2e passed"
