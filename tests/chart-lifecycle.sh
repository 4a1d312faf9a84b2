#!/usr/bin/env bash
# The life of a release on a real cluster, with agents at work: install from an earlier chart, upgrade to this one, roll back, upgrade
# again, `helm test`, uninstall, install again over the objects that were kept, and two releases for two namespaces. And the kustomize base.
# Commands of docs/how-to/install.md are run as they stand there. `make chart-lifecycle` makes a cluster and runs it there with Helm 3 and Helm 4.
#
#   tests/chart-lifecycle.sh [HELM...]     programs on PATH (default: helm, and helm4 if it is there)
#   tests/chart-lifecycle.sh --from        prints the commit with the earlier chart
#
# CHART_FROM: the commit with the earlier chart (default: the last one whose chart differs from this one's).
# IMAGE, FROM_IMAGE: the operator's images for this chart and for the earlier one, as NAME:TAG (default: localhost/spillway/spillway:dev
# for both). The cluster has them, and the demo agent's. No other release of Spillway may be installed, and no CustomResourceDefinition
# of it: all of them are deleted at the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
image=${IMAGE:-localhost/spillway/spillway:dev}
from_image=${FROM_IMAGE:-$image}
system=spillway-system team=spillway-life work=$(mktemp -d)
[ $# -gt 0 ] || { set -- helm; ! command -v helm4 > /dev/null || set -- helm helm4; }
if [ -z "${CHART_FROM:-}" ]; then
    if git diff --quiet HEAD -- charts/spillway; then CHART_FROM=$(git log -1 --format=%h -- charts/spillway)^; else CHART_FROM=HEAD; fi
fi
if [ "${1:-}" = --from ]; then echo "$CHART_FROM"; exit; fi
for tool in "$@" kubectl jq git; do
    command -v "$tool" > /dev/null || { echo "chart-lifecycle: $tool is not on PATH. Try: make chart-lifecycle" >&2; exit 2; }
done
export HELM_CACHE_HOME=$work/helm/cache HELM_CONFIG_HOME=$work/helm/config HELM_DATA_HOME=$work/helm/data

mkdir "$work/from"
git archive "$CHART_FROM" charts/spillway | tar -x -C "$work/from" || exit 2
earlier=$work/from/charts/spillway this=charts/spillway
echo "earlier chart: $(git log -1 --format='%h, %cs' "$CHART_FROM")"

passed=0 failed=0
ok() { passed=$((passed + 1)); echo "ok   $*"; }
bad() { failed=$((failed + 1)); echo "FAIL $1"; [ $# -lt 2 ] || echo "     ${2//$'\n'/$'\n'     }"; }
# check NAME CMD... : passes if CMD succeeds
check() {
    local name=$1 output began=$SECONDS; shift
    if output=$("$@" 2>&1); then ok "$name ($((SECONDS - began)) s)"; else bad "$name" "$(tail -n 25 <<<"$output")"; fi
}
says() { local text=$1 output; shift; output=$("$@" 2>&1) || { echo "$output"; return 1; }; grep -qF -- "$text" <<<"$output" || { echo "not found: $text"; echo "$output"; return 1; }; }
refused() { local text=$1 output; shift; if output=$("$@" 2>&1); then echo "was not refused: $output"; return 1; fi; grep -qF -- "$text" <<<"$output" || { echo "$output"; return 1; }; }
# within SECONDS CMD... : CMD succeeds at last
within() { local end=$((SECONDS + $1)) output; shift; until output=$("$@" 2>&1); do [ $SECONDS -lt $end ] || { echo "$output"; return 1; }; sleep 1; done; }
in_team() { kubectl -n "$team" "$@"; }

finish() {
    local namespace name
    # A failure may leave a release whose operator is gone.
    for name in spillway one two; do helm uninstall "$name" --no-hooks --ignore-not-found -n "$system" --wait; done
    for namespace in "$team" "$team-two"; do
        for name in $(kubectl -n "$namespace" get agents -o name 2> /dev/null); do
            kubectl -n "$namespace" patch "$name" --type=merge -p '{"metadata":{"finalizers":null}}'
        done
        kubectl delete namespace "$namespace" --ignore-not-found --timeout=2m
    done
    kubectl delete namespace "$system" --ignore-not-found --timeout=2m
    kubectl get crd -o name | { grep '\.spillway\.dev$' || true; } | xargs -r kubectl delete --timeout=2m
    rm -rf "$work"
} > /dev/null 2>&1
trap finish EXIT

# --- the page --------------------------------------------------------------------------------------------------------
# use HELM : the page's `helm` is this program
use() { mkdir -p "$work/bin"; ln -sf "$(command -v "$1")" "$work/bin/helm"; }
# page HEADING [VARIABLE=VALUE...] : runs the commands of docs/how-to/install.md below this heading, and stops at the first that fails
page() {
    local commands
    commands=$(e2e/page-commands.sh docs/how-to/install.md "$1") || return 1
    env "${@:2}" PATH="$work/bin:$PATH" bash -euo pipefail -c "$commands"
}

# --- a release --------------------------------------------------------------------------------------------------------
# release HELM COMMAND CHART [FLAGS...] : installs or upgrades
release() {
    local helm=$1 command=$2 chart=$3 of=$image; shift 3
    [ "$chart" = "$this" ] || of=$from_image
    "$helm" "$command" spillway "$chart" -n "$system" --set "image.repository=${of%:*}" --set "image.tag=${of##*:}" \
        --set "podAnnotations.of=$(basename "$(dirname "$(dirname "$chart")")")" --wait --timeout 4m "$@"
}

# --- agents at work ---------------------------------------------------------------------------------------------------
# Three items that take longer than this test, and a pool of two agents without items.
pools() {
    local namespace=$1
    kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - &&
        kubectl label namespace "$namespace" --overwrite pod-security.kubernetes.io/enforce=restricted &&
        kubectl -n "$namespace" apply --server-side -f - <<'Y'
apiVersion: spillway.dev/v1alpha1
kind: WorkQueue
metadata: {name: long}
spec: {accepts: {default: true}}
---
apiVersion: spillway.dev/v1alpha1
kind: AgentPool
metadata: {name: worker}
spec:
  type: worker
  scaling: {max: 4, cooldownSeconds: 600}
  queues: [{name: long}]
  agent:
    image: localhost/spillway/demo-agent:dev
    command: [/bin/demo-agent]
    env: [{name: AGENT_PERIOD, value: "1"}]
    resources: {requests: {cpu: 5m, memory: 8Mi, ephemeral-storage: 8Mi}, limits: {cpu: 100m, memory: 32Mi, ephemeral-storage: 64Mi}}
---
apiVersion: spillway.dev/v1alpha1
kind: AgentPool
metadata: {name: free}
spec:
  type: free
  replicas: 2
  agent:
    image: localhost/spillway/demo-agent:dev
    command: [/bin/demo-agent]
    resources: {requests: {cpu: 5m, memory: 8Mi, ephemeral-storage: 8Mi}, limits: {cpu: 100m, memory: 32Mi, ephemeral-storage: 64Mi}}
Y
}
item() { printf '{"apiVersion":"spillway.dev/v1alpha1","kind":"WorkItem","metadata":{"name":"%s"},"spec":{"queueRef":{"name":"long"},"payload":"%s"}}' "$1" "$2" | in_team apply --server-side -f -; }
items() { item a "9000 steps" && item b "9000 steps" && item c "9000 steps"; }
at_work() { # three items are held, and both pools have their agents
    local held agents
    held=$(in_team get workitems -o json | jq '[.items[] | select(.status.phase == "Leased")] | length')
    agents=$(in_team get agents -o json | jq -r '[.items[] | select(.metadata.deletionTimestamp == null) | .status.phase] | sort | join(" ")')
    case "$held $agents" in "3 Active Active Active Idle Idle"*) return 0 ;; esac
    echo "$held items are held; agents: $agents"; in_team get agentpools,agents,workitems
    return 1
}
# The pods, with restarts; the Agents; and the items that are held, with their agent and all that was counted. A lost agent or an attempt that
# is counted changes a line.
snapshot() {
    # shellcheck disable=SC2016  # a filter of jq
    local ours='.metadata.name as $name | select((.metadata.labels["spillway.dev/pool"] == "free") or any($ENV.HOLDERS | split(" ")[]; . == $name))'
    in_team get pods -o json | jq -r ".items[] | $ours"' | "pod \(.metadata.name) \(.metadata.uid) restarts \([.status.containerStatuses[]?, .status.initContainerStatuses[]? | .restartCount] | add)"' | sort
    in_team get agents -o json | jq -r ".items[] | $ours"' | "agent \(.metadata.name) \(.metadata.uid) \(.status.podRef.uid) \(.status.phase)"' | sort
    in_team get workitems a b c -o json | jq -r '.items[] | "item \(.metadata.name) \(.status.phase) \(.status.lease.agent) attempts \(.status.attempts // 0) failures \(.status.failures // 0) stalls \(.status.stalls // 0)"'
}
keep_snapshot() {
    HOLDERS=$(in_team get workitems a b c -o json | jq -r '[.items[].status.lease.agent] | join(" ")'); export HOLDERS
    snapshot > "$work/before"
    grep -c . "$work/before"
}
unchanged() { snapshot > "$work/after"; diff "$work/before" "$work/after"; }
# A new item is done, so the leader, the gateways and a new agent's pod work together.
number=0
new_work() { # new_work N
    local name=short-$1
    item "$name" "1 step" && in_team wait --for=condition=Complete "workitem/$name" --timeout=90s
}
served() { # served STEP : after a change of the release
    number=$((number + 1))
    check "$1: new work is done" new_work $number
    check "$1: no agent was lost, and no attempt was counted" unchanged
}

# --- uninstall --------------------------------------------------------------------------------------------------------
none_left() {
    local left
    left=$(kubectl get agents -A -o name; in_team get pods -o name
        kubectl -n "$system" get deployments,replicasets,pods,jobs,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets -o name | grep -vE '/(default|kube-root-ca.crt)$'
        kubectl get clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings -l app.kubernetes.io/instance=spillway -o name)
    [ -z "$left" ] || { echo "left: $left"; return 1; }
}
kept() { [ "$(in_team get agentpools,workqueues -o name | wc -l)" = 3 ] && [ "$(in_team get workitems a b c -o name | wc -l)" = 3 ]; }
nothing_counted() { in_team get workitems a b c -o json | jq -e '[.items[].status | (.failures // 0) + (.stalls // 0)] | add == 0' || { in_team get workitems -o yaml | grep -A12 'attemptHistory'; return 1; }; }
deployments_ready() { kubectl -n "$system" get deployments -o json | jq -e '.items | length == 2 and all(.status.readyReplicas == .spec.replicas)'; }

life() {
    local helm=$1 as
    as=$("$helm" version --short 2> /dev/null || "$helm" version)
    echo "== ${as%%+*}"
    kubectl create namespace "$system" > /dev/null
    kubectl label namespace "$system" pod-security.kubernetes.io/enforce=restricted > /dev/null
    use "$helm"
    check "$helm installs the earlier chart" release "$helm" install "$earlier"
    check "pools, a queue and items are taken" pools "$team"
    items > /dev/null
    check "agents are at work" within 120 at_work
    keep_snapshot > /dev/null
    check "$helm upgrades to this chart" release "$helm" upgrade "$this"
    served "upgrade"
    check "$helm test passes" says "Phase:          Succeeded" "$helm" test spillway -n "$system" --timeout 2m
    check "$helm rolls back, as the page says" page "Roll back" REVISION=1
    served "rollback"
    check "$helm upgrades again, as the page says" page Upgrade "TAG=${image##*:}"
    served "second upgrade"
    check "$helm upgrades to the same chart" release "$helm" upgrade "$this"
    # The agent of the short item may not be shown as idle yet.
    check "agents are at work still" within 60 at_work
    check "$helm uninstalls, with agents at work" "$helm" uninstall spillway -n "$system" --wait --timeout 5m
    check "no agent, no pod and no object of the release is left" within 60 none_left
    check "pools, the queue and items are kept" kept
    check "$helm installs this chart over them" release "$helm" install "$this"
    check "agents are at work on the kept items" within 120 at_work
    check "uninstall has counted no failure and no loss of an item" nothing_counted
    check "$helm test passes again" says "Phase:          Succeeded" "$helm" test spillway -n "$system" --timeout 2m
    refusal "$helm"
    check "$helm uninstalls again" "$helm" uninstall spillway -n "$system" --wait --timeout 5m
    check "nothing is left again" within 60 none_left
    check "the namespace of the team can be deleted" kubectl delete namespace "$team" --timeout=1m
    check "the release's own too" kubectl delete namespace "$system" --timeout=1m
}

# --- an uninstall that fails ------------------------------------------------------------------------------------------
# A program that ignores SIGTERM ends after the grace period of its pod, which is longer than the time that uninstall has.
refusal() {
    local helm=$1
    in_team apply --server-side -f - > /dev/null <<'Y'
apiVersion: spillway.dev/v1alpha1
kind: AgentPool
metadata: {name: slow}
spec:
  type: free
  replicas: 1
  supervision: {goodbyeTimeoutSeconds: 60}
  agent:
    image: localhost/spillway/demo-agent:dev
    command: [/bin/sh, -c, "trap '' TERM; while :; do sleep 1; done"]
    resources: {requests: {cpu: 5m, memory: 8Mi, ephemeral-storage: 8Mi}, limits: {cpu: 100m, memory: 32Mi, ephemeral-storage: 64Mi}}
Y
    check "an agent runs that ignores SIGTERM" within 60 slow_runs
    release "$helm" upgrade "$this" --set uninstall.timeoutSeconds=20 > /dev/null
    check "uninstall fails where an agent does not end in time" refused "spillway-uninstall" "$helm" uninstall spillway -n "$system" --wait --timeout 5m
    check "its log names the agent" says "slow-" kubectl -n "$system" logs job/spillway-uninstall
    check "and the release still runs" deployments_ready
    check "pools say why they have no agents" says OperatorRemoval in_team get agentpools
    check "the page has the way back" page "When agents do not end" "REVISION=$("$helm" history spillway -n "$system" -o json | jq '.[-1].revision')"
    check "agents are back" within 120 at_work
    check "and the release can be upgraded" release "$helm" upgrade "$this"
    in_team delete agentpool slow --wait > /dev/null
    check "the agent ends" within 90 no_slow
}
slow_runs() { in_team get agents -o json | jq -e '[.items[] | select(.spec.poolRef.name == "slow" and .status.phase == "Idle")] | length == 1'; }
no_slow() { in_team get agents -o json | jq -e '[.items[] | select(.spec.poolRef.name == "slow")] | length == 0'; }

# --- two releases for two namespaces ----------------------------------------------------------------------------------
two() {
    local helm=$1
    echo "== two releases for two namespaces"
    kubectl create namespace "$system" > /dev/null
    for namespace in "$team" "$team-two"; do kubectl create namespace "$namespace" > /dev/null; done
    local flags=(-n "$system" --set "image.repository=${image%:*}" --set "image.tag=${image##*:}" --set replicaCount=1 --set gateway.replicaCount=1 --wait --timeout 4m)
    # The CustomResourceDefinitions that were kept belong to a release of another name.
    check "the first is installed, and takes over the CustomResourceDefinitions" "$helm" install one "$this" "${flags[@]}" --set "namespaceScope=$team" --take-ownership
    check "the second is installed beside it" "$helm" install two "$this" "${flags[@]}" --set "namespaceScope=$team-two" --set crds.install=false
    check "the first has pools" pools "$team"
    check "the second has pools" pools "$team-two"
    items > /dev/null
    check "agents of both run" within 120 both_run
    check "the first passes its test" says "Phase:          Succeeded" "$helm" test one -n "$system" --timeout 2m
    check "the second too" says "Phase:          Succeeded" "$helm" test two -n "$system" --timeout 2m
    of_first > "$work/of-first"
    check "the second is uninstalled" "$helm" uninstall two -n "$system" --wait --timeout 5m
    check "its agents are gone" none_of agents,pods -n "$team-two"
    check "those of the first are not" diff_first
    check "the first passes its test still" says "Phase:          Succeeded" "$helm" test one -n "$system" --timeout 2m
    check "the first is uninstalled" "$helm" uninstall one -n "$system" --wait --timeout 5m
    check "no agent is left" none_of agents -A
    for namespace in "$team" "$team-two" "$system"; do check "namespace $namespace can be deleted" kubectl delete namespace "$namespace" --timeout=1m; done
}
none_of() { local left; left=$(kubectl get "$@" -o name); [ -z "$left" ] || { echo "left: $left"; return 1; }; }
of_first() { in_team get agents -o json | jq -r '.items[].metadata.uid' | sort; }
diff_first() { diff "$work/of-first" <(of_first); }
both_run() { at_work && [ "$(kubectl -n "$team-two" get agents -o json | jq '[.items[] | select(.status.phase == "Idle")] | length')" = 2 ]; }

# --- a release of Helm 3 that Helm 4 continues ------------------------------------------------------------------------
across() {
    local first=$1 second=$2
    echo "== a release of $first, continued by $second"
    kubectl create namespace "$system" > /dev/null
    check "$first installs" release "$first" install "$this" --take-ownership
    pools "$team" > /dev/null; items > /dev/null
    check "agents are at work" within 120 at_work
    keep_snapshot > /dev/null
    check "$second upgrades" release "$second" upgrade "$this" --set podAnnotations.by=second
    served "upgrade"
    check "$second rolls back" "$second" rollback spillway 1 -n "$system" --wait --timeout 4m
    served "rollback"
    check "$second uninstalls, with agents at work" "$second" uninstall spillway -n "$system" --wait --timeout 5m
    check "nothing is left" within 60 none_left
    for namespace in "$team" "$system"; do kubectl delete namespace "$namespace" --timeout=1m > /dev/null; done
}

# --- from nothing to nothing, by the page -------------------------------------------------------------------------------
by_the_page() {
    echo "== by the page"
    use "$1"
    check "the page installs" page Helm "REGISTRY=${image%/*}" "TAG=${image##*:}"
    check "pools, a queue and items are taken" pools "$team"
    items > /dev/null
    check "agents are at work" within 120 at_work
    check "the page removes everything" page Remove "TEAM=$team"
    check "no object of the release is left" within 60 none_left
    check "no kind of Spillway is left" none_of_ours
    check "no object that the controller made is left" nothing_made
    for namespace in "$team" "$system"; do check "namespace $namespace can be deleted" kubectl delete namespace "$namespace" --timeout=1m; done
}
# The base without Helm, with the image of a kustomization as on the page
by_kustomize() {
    echo "== by kustomize"
    local mine=$work/config/mine
    cp -r config crds "$work/"
    mkdir "$mine"
    sed -n '/^apiVersion: kustomize.config.k8s.io/,/^```/p' docs/how-to/install.md |
        sed "/^\`\`\`/d; s|\.\./\.\./config/default|../default|; s|REGISTRY/spillway|${image%:*}|; s|\"0.1.0\"|${image##*:}|" > "$mine/kustomization.yaml"
    check "kustomize installs" page kustomize "--chdir=$mine"
    check "pools, a queue and items are taken" within 30 pools "$team"
    items > /dev/null
    check "agents are at work" within 120 at_work
    check "the page removes everything" page "Remove what kustomize installed" "--chdir=$mine"
    check "no object of the base is left" within 60 none_left
    check "no kind of Spillway is left" none_of_ours
    check "the namespace of the team can be deleted" kubectl delete namespace "$team" --timeout=1m
}
none_of_ours() { local left; left=$(kubectl get crd -o name | grep '\.spillway\.dev$'); [ -z "$left" ] || { echo "left: $left"; return 1; }; }
# Helm's own records and what Kubernetes makes in each namespace
nothing_made() {
    local left
    left=$(for namespace in "$system" "$team"; do kubectl -n "$namespace" get secrets,leases,configmaps,networkpolicies -o name; done | grep -v kube-root-ca.crt)
    [ -z "$left" ] || { echo "left: $left"; return 1; }
}

by_the_page "$1"
by_kustomize
for helm; do life "$helm"; done
two "${!#}"
[ $# -lt 2 ] || across "$1" "$2"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
