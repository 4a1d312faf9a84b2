#!/usr/bin/env bash
# The chart and a short list of tests of the whole system on each version of Kubernetes that the local cluster can have, on one
# cluster after the other. `make e2e-kubernetes` builds the images and calls it. All versions are tried, also after a failure.
#
#   e2e/kubernetes.sh [--write] [VERSION...]     VERSION: 1.34; default: all of `cluster versions`
#
# --write: write the results into docs/reference/kubernetes.md. Results of versions that this run does not try are those of the
# last run in this checkout (target/kubernetes).
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep a cluster on which something failed,
# and stop there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
page=docs/reference/kubernetes.md results=target/kubernetes
started=$(date +%s)
step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }

# What is tried: a name for the table, and a command of the functions below.
areas=(
    "Install with Helm, samples at work, delete them, uninstall|install"
    "The chart: rendering, what the API server accepts, admission policies, rights|chart"
    "Pools and agents|tests pools::"
    "Queues and items|tests work::"
    "Isolation of the pod and its network|tests pod_walls::"
    "Other hosts|tests egress::"
    "The sandbox|tests sandbox::"
    "Budgets and calls of models|tests budgets:: models::"
    "Toolsets|tests toolsets::"
)
# Features of Kubernetes that change what Spillway can do or has to expect. Servers say whether they have them.
features=(
    "CustomResourceFieldSelectors|the controller lists the Agents of one pool by a field"
    "UserNamespacesSupport|pods of agents have a user namespace (\`isolation.userNamespace\`)"
    "AuthorizePodWebsocketUpgradeCreatePermission|the right to \`get\` \`pods/exec\` is not enough to enter a pod; [the policy on exec](../how-to/install.md#admission-policies) asks for more in each version"
    "ImageVolume|volumes from images. Spillway does not use them: [programs come by a hook](../adr/0014-programs-by-a-hook.md)"
    "PodLevelResources|limits of a whole pod. Spillway sets them for each container"
    "MutatingAdmissionPolicy|policies that change objects. Spillway has none; yours may change its pods"
)

kubectl_() { "${cluster[@]}" run kubectl "$@"; }
# --- what is tried -----------------------------------------------------------------------------------------------------
chart() { "${cluster[@]}" run tests/chart.sh; }
tests() { SPILLWAY_AUDIT_LOG=$("${cluster[@]}" audit-log) "${cluster[@]}" run cargo test --workspace --locked --test e2e -- --test-threads 4 --skip ::alone_ "$@"; }
helm_() { "${cluster[@]}" run env HELM_CACHE_HOME="$PWD/target/helm" HELM_CONFIG_HOME="$PWD/target/helm" HELM_DATA_HOME="$PWD/target/helm" helm "$@"; }
# The first area, because Helm takes over no object that it did not make. The CRDs stay for the others.
install() {
    helm_ install spillway charts/spillway --namespace spillway-system --create-namespace --wait --timeout 5m \
        --set image.repository=localhost/spillway/spillway --set image.tag=dev &&
        kubectl_ apply --server-side -k config/samples &&
        kubectl_ -n demo wait --for=condition=Ready agentpools --all --timeout=5m &&
        kubectl_ -n demo wait --for=condition=Complete workitem/release-notes --timeout=5m &&
        "${cluster[@]}" run e2e/refused-nothing.sh && kubectl_ delete -k config/samples --timeout=3m &&
        helm_ uninstall spillway --namespace spillway-system --wait --timeout 3m
}

# --- what the servers say of themselves ----------------------------------------------------------------------------------
# feature NAME : whether the API server has it, by its own metrics
feature() {
    local line stage
    line=$(grep -F "kubernetes_feature_enabled{name=\"$1\"" "$out/metrics") || { echo "no such feature"; return; }
    stage=${line#*stage=\"} stage=${stage%%\"*}
    if [ "${line##* }" = 1 ]; then echo "on (${stage:-GA})"; else echo "off (${stage:-GA})"; fi
}
facts() {
    local entry node=$SPILLWAY_CLUSTER-node
    kubectl_ get --raw /metrics > "$out/metrics"
    printf '%s\t%s\n' "API server" "$(kubectl_ get --raw /version | jq -r .gitVersion)"
    printf '%s\t%s\n' kubelet "$(kubectl_ get node "$node" -o jsonpath='{.status.nodeInfo.kubeletVersion}')"
    printf '%s\t%s\n' "container runtime" "$(kubectl_ get node "$node" -o jsonpath='{.status.nodeInfo.containerRuntimeVersion}')"
    printf '%s\t%s\n' etcd "$("${cluster[@]}" run curl -s --max-time 5 http://127.0.0.1:2379/version | jq -r .etcdserver)"
    printf '%s\t%s\n' "user namespaces on the node" "$(kubectl_ get node "$node" -o json | jq -r '[.status.runtimeHandlers[]? | select((.name // "") == "") | .features.userNamespaces] | if .[0] then "yes" else "no" end')"
    for entry in "${features[@]}"; do printf '%s\t%s\n' "${entry%%|*}" "$(feature "${entry%%|*}")"; done
}
# --- one version -------------------------------------------------------------------------------------------------------
# outcome LOG STATUS : for the table
outcome() {
    local passed failed
    passed=$(sed -nE 's/^test result: .* ([0-9]+) passed;.*/\1/p; s/^([0-9]+) passed, [0-9]+ failed$/\1/p' "$1" | tail -n 1)
    # shellcheck disable=SC2016  # the marks are Markdown's
    failed=$(sed -nE 's/^test (.*) \.\.\. FAILED$/`\1`/p' "$1" | paste -sd, | sed 's/,/, /g')
    if [ "$2" != 0 ]; then echo "**failed**${failed:+: $failed}"
    # A list of tests that names none that exists would pass.
    elif [ "${passed:-1}" = 0 ]; then echo "**no test ran**"
    else echo "passed${passed:+ ($passed)}"; fi
}
fresh() { # an empty cluster with the images
    "${cluster[@]}" down > /dev/null &&
        ETCD_FSYNC=off "${cluster[@]}" up &&
        "${cluster[@]}" load target/images/{spillway,demo-agent,git-agent,attack-agent}.tar
}
# try VERSION : status 1 if anything failed. It is called where `set -e` does not hold.
try() {
    local version=$1 entry name log number=0 status good=0
    export KUBERNETES=$version SPILLWAY_CLUSTER=sw-v${version//./}
    out=$results/$version
    rm -rf "$out"; mkdir -p "$out"
    step "Kubernetes $version: starting the cluster $SPILLWAY_CLUSTER"
    fresh && facts > "$out/facts" || return 1
    for entry in "${areas[@]}"; do
        name=${entry%%|*} number=$((number + 1)) log=$out/$number.log status=0
        step "Kubernetes $version: $name"
        # shellcheck disable=SC2086  # a function and its arguments
        ${entry#*|} > "$log" 2>&1 || status=$?
        printf '%s\t%s\n' "$name" "$(outcome "$log" $status)" | tee -a "$out/results"
        grep -qF '**' <<< "$(tail -n 1 "$out/results")" || continue
        good=1
        grep -E '^(FAIL|test .*FAILED|Error|error)' "$log" | head -n 20 || tail -n 20 "$log"
        if [ "${E2E_KEEP:-}" = 1 ]; then echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2; exit 1; fi
        # An operator that is left would disturb the others.
        [ "$name" != "${areas[0]%%|*}" ] || { fresh && "${cluster[@]}" run e2e/crds.sh; } || return 1
    done
    "${cluster[@]}" down
    return $good
}

# --- the table ---------------------------------------------------------------------------------------------------------
cell() { awk -F '\t' -v name="$2" '$1 == name { print $2; found = 1 } END { if (!found) print "not run" }' "$results/$3/$1" 2> /dev/null || echo "not run"; }
row() { # FILE NAME SHOWN [MORE]
    local version
    printf '| %s ' "$3"
    for version in "${all[@]}"; do printf '| %s ' "$(cell "$1" "$2" "$version")"; done
    printf '|%s\n' "${4:+ $4 |}"
}
table() {
    local entry name
    echo "Written on $(date -u +%F) by \`make e2e-kubernetes WRITE=1\`. The numbers of tests are in brackets."
    echo
    printf '| what was run '; printf '| %s ' "${all[@]}"; printf '|\n|---'; printf '|---%.0s' "${all[@]}"; printf '|\n'
    for entry in "${areas[@]}"; do row results "${entry%%|*}" "${entry%%|*}"; done
    echo
    printf '| what the servers said '; printf '| %s ' "${all[@]}"; printf '| what it means |\n|---'; printf '|---%.0s' "${all[@]}"; printf '|---|\n'
    for name in "API server" kubelet etcd "container runtime" "user namespaces on the node"; do row facts "$name" "$name" " "; done
    for entry in "${features[@]}"; do row facts "${entry%%|*}" "\`${entry%%|*}\`" "${entry#*|}"; done
}
write() {
    local version
    [ "$(grep -cE '^<!-- (begin|end) of results' "$page")" = 2 ] || { echo "$page lacks the marks of the results" >&2; return 1; }
    table > "$results/table.md"
    sed -i -e "/^<!-- begin of results/r $results/table.md" -e '/^<!-- begin of results/,/^<!-- end of results/{/^<!-- /!d}' "$page"
    echo "wrote the results into $page"
    for version in "${chosen[@]}"; do
        # Status 1 is that of an installation that failed.
        # shellcheck disable=SC2016  # the marks are Markdown's
        WRITE=1 KUBERNETES=$version e2e/way-in.sh '`make e2e-kubernetes`: Helm 3, and the samples' test "$(cell results "${areas[0]%%|*}" "$version")" = passed || [ $? = 1 ]
    done
}

write=''
if [ "${1:-}" = --write ]; then write=1; shift; fi
mapfile -t all < <("${cluster[@]}" versions | cut -d ' ' -f 1 | sort -V)
chosen=("$@")
[ ${#chosen[@]} != 0 ] || chosen=("${all[@]}")
step "building the tests"
cargo test --workspace --locked --test e2e --no-run
built=$(realpath "target/$(rustc -vV | sed -n 's/^host: //p')/quick")
export SPILLWAY_BINARY=$built/spillway SPILLWAY_PLUGIN=$built/kubectl-spillway
wrong=()
trap 'for version in "${chosen[@]}"; do [ "${E2E_KEEP:-}" = 1 ] || SPILLWAY_CLUSTER=sw-v${version//./} "${cluster[@]}" down > /dev/null 2>&1; done' EXIT
for version in "${chosen[@]}"; do try "$version" || wrong+=("$version"); done
[ -z "$write" ] || write
printf '\n'; table
[ ${#wrong[@]} = 0 ] || { echo "failed on Kubernetes ${wrong[*]}; the logs are in $results" >&2; exit 1; }
