#!/usr/bin/env bash
# Tests of charts/spillway and config/: that they render, refuse what is wrong, agree with each other, and hold no more
# rights than they should. Needs helm and kubectl on PATH, as in `e2e/cluster/cluster run tests/chart.sh`.
#
#   tests/chart.sh           run the tests
#   tests/chart.sh --write   renew config/default from the chart
#
# With SPILLWAY_KUBECONFIG or KUBECONFIG and a server that answers, that server judges the objects too (dry runs: nothing
# is stored).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
for tool in helm kubectl; do
    command -v "$tool" >/dev/null || { echo "chart: $tool is not on PATH. Try: e2e/cluster/cluster run tests/chart.sh" >&2; exit 2; }
done
CHART=charts/spillway
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The plugins, caches and settings of whoever runs this must not change what is rendered.
export HELM_CACHE_HOME=$work/helm/cache HELM_CONFIG_HOME=$work/helm/config HELM_DATA_HOME=$work/helm/data

passed=0 failed=0
ok() { passed=$((passed + 1)); echo "ok   $*"; }
bad() { failed=$((failed + 1)); echo "FAIL $1"; [ $# -lt 2 ] || echo "     ${2//$'\n'/$'\n'     }"; }
# check NAME CMD... : passes when CMD succeeds
check() {
    local name=$1 output; shift
    if output=$("$@" 2>&1); then ok "$name"; else bad "$name" "$(tail -n 15 <<<"$output")"; fi
}
# says TEXT CMD... : CMD succeeds and its output holds TEXT
says() { local text=$1 output; shift; output=$("$@" 2>&1) || { echo "$output"; return 1; }; grep -qF -- "$text" <<<"$output" || { echo "not found: $text"; return 1; }; }
lacks() { local text=$1 output; shift; output=$("$@" 2>&1) || { echo "$output"; return 1; }; ! grep -F -- "$text" <<<"$output"; }
# refused TEXT CMD... : CMD fails and its message holds TEXT
refused() { local text=$1 output; shift; if output=$("$@" 2>&1); then echo "was not refused"; return 1; fi; grep -qF -- "$text" <<<"$output" || { echo "$output"; return 1; }; }
render() { helm template spillway "$CHART" --namespace spillway-system "$@"; }
without_crds() { render --set crds.install=false "$@"; }

# --- config/default is what the chart renders -------------------------------------------------------------------------
generated="# Rendered by 'tests/chart.sh --write'. Do not edit."
# Without the marks of Helm: it does not manage what kubectl applies.
default_objects() {
    local objects
    objects=$(without_crds) || return 1
    echo "$generated"
    grep -vE '^# Source: |^ *helm\.sh/chart: |^ *app\.kubernetes\.io/managed-by: |^$' <<<"$objects"
}
case ${1:-} in
    '') ;;
    --write)
        if ! default_objects > "$work/spillway.yaml"; then echo "chart: cannot render; nothing was written" >&2; exit 1; fi
        cp "$work/spillway.yaml" config/default/
        echo "wrote config/default/spillway.yaml"
        exit 0
        ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
same() { # same FILE CMD... : FILE holds what CMD prints
    local file=$1; shift
    [ -e "$file" ] || { echo "$file is missing; run tests/chart.sh --write"; return 1; }
    "$@" > "$work/fresh" || return 1
    diff -u "$file" "$work/fresh" || { echo "$file is stale; run tests/chart.sh --write"; return 1; }
}
check "config/default/spillway.yaml is what the chart renders" same config/default/spillway.yaml default_objects

# --- it renders -------------------------------------------------------------------------------------------------------
check "lint" helm lint --strict "$CHART"
sets=(
    "defaults|"
    "one namespace|--set namespaceScope=team-a"
    "one replica|--set replicaCount=1"
    "no network policy|--set networkPolicy.enabled=false"
    "closed network policy|--set networkPolicy.apiServer.cidrs={10.0.0.1/32} --set networkPolicy.apiServer.ports={6443} --set networkPolicy.dns=false"
    "service monitor|--set serviceMonitor.enabled=true"
    "no CRDs, no roles, own account|--set crds.install=false --set rbac.create=false --set rbac.aggregate=false --set serviceAccount.create=false --set serviceAccount.name=mine"
    "everything set|--set image.digest=sha256:$(printf 'a%.0s' {1..64}) --set priorityClassName=p --set nodeSelector.disk=ssd --set-json=tolerations=[{\"operator\":\"Exists\"}] --set podAnnotations.a=b --set podLabels.a=b --set imagePullSecrets[0].name=s --set extraArgs={--x} --set-json=topologySpreadConstraints=[] --set logFormat=text"
)
for entry in "${sets[@]}"; do
    read -ra flags <<<"${entry#*|}"
    check "lint with ${entry%%|*}" helm lint --strict "$CHART" "${flags[@]}"
    # kubectl parses every document, without a server.
    parses() { render "${flags[@]}" > "$work/render.yaml" && printf 'resources: [render.yaml]\n' > "$work/kustomization.yaml" && kubectl kustomize "$work" >/dev/null; }
    check "render with ${entry%%|*}" parses
done
check "two replicas have a disruption budget" says "kind: PodDisruptionBudget" without_crds
check "one replica has none" lacks "kind: PodDisruptionBudget" without_crds --set replicaCount=1
check "the network policy can be turned off" lacks "kind: NetworkPolicy" without_crds --set networkPolicy.enabled=false
check "the service monitor is off by default" lacks "kind: ServiceMonitor" without_crds
check "the service monitor can be turned on" says "kind: ServiceMonitor" without_crds --set serviceMonitor.enabled=true
check "one namespace: the controller is told" says "--namespace=team-a" without_crds --set namespaceScope=team-a
check "a digest decides over a tag" says "image: \"spillway/spillway@sha256:$(printf 'a%.0s' {1..64})\"" without_crds --set image.tag=dev --set "image.digest=sha256:$(printf 'a%.0s' {1..64})"
crds_are() { local want=$1; shift; [ "$(render "$@" | grep -c '^kind: CustomResourceDefinition$')" = "$want" ]; }
check "every CRD is installed" crds_are "$(find crds -name '*.spillway.dev.yaml' | wc -l)"
check "crds.install=false installs none" crds_are 0 --set crds.install=false
all_kept() { [ "$(render | grep -c 'helm.sh/resource-policy: keep')" = "$(render | grep -c '^kind: CustomResourceDefinition$')" ]; }
check "every CRD is kept by uninstall" all_kept

# --- least rights -----------------------------------------------------------------------------------------------------
check "no role holds a wildcard" lacks '*' without_crds --show-only templates/rbac.yaml
for forbidden in secrets configmaps serviceaccounts pods/exec pods/log impersonate escalate; do
    check "the controller has no right to $forbidden" lacks "$forbidden" without_crds --show-only templates/rbac.yaml
done
scoped_rules() { # rules of the ClusterRole with a namespace scope: nodes and nothing else
    without_crds --set namespaceScope=team-a --show-only templates/rbac.yaml | awk '/^kind: /{role = $2 == "ClusterRole"} /^---/{role = 0} role && /resources:/' | tr -d ' \n'
}
only_nodes() { [ "$(scoped_rules)" = 'resources:[nodes]' ] || { scoped_rules; return 1; }; }
check "one namespace: the only cluster-wide right is on nodes" only_nodes
edit_rules() { without_crds --show-only templates/aggregated.yaml | sed -n '/name: spillway-edit/,$p'; }
check "edit cannot change grants" lacks grants edit_rules
check "edit cannot change cluster budgets" lacks clusterbudgets edit_rules
check "edit cannot write status" lacks /status edit_rules

# --- values.schema.json refuses, and says where -----------------------------------------------------------------------
check "refuses an unknown value" refused replicas render --set replicas=3
check "refuses an unknown nested value" refused repo render --set image.repo=x
check "refuses words for a number" refused replicaCount render --set-string replicaCount=two
check "refuses a word for a boolean" refused install render --set-string crds.install=yes
check "refuses an unknown log format" refused logFormat render --set logFormat=xml
check "refuses concurrency 0, which would be no bound" refused concurrency render --set concurrency=0
check "refuses a namespace that is none" refused namespaceScope render --set namespaceScope=Team_A
check "refuses a digest that is none" refused digest render --set image.digest=sha256:12
check "refuses a quantity that is none" refused memory render --set resources.limits.memory=lots
check "refuses a port that is none" refused ports render --set 'networkPolicy.apiServer.ports={70000}'
check "refuses an unknown toleration field" refused effects render --set-json 'tolerations=[{"effects":"NoSchedule"}]'
check "refuses an account that nobody makes or names" refused name render --set serviceAccount.create=false
check "refuses a service monitor without a service" refused service.enabled render --set serviceMonitor.enabled=true --set service.enabled=false
every_value_is_shown() { # the other way round (a value that the schema does not know) makes the defaults fail
    local key missing=0
    while read -r key; do
        grep -qE "^$key:" "$CHART/values.yaml" || { echo "values.yaml lacks $key"; missing=1; }
    done < <(sed -n '/^  "properties": {/,$s/^    "\([a-zA-Z]*\)": {.*/\1/p' "$CHART/values.schema.json" | grep -vx global)
    return $missing
}
check "values.yaml shows every value of the schema" every_value_is_shown

# --- config/ ----------------------------------------------------------------------------------------------------------
for folder in config/default config/samples; do
    builds() { [ -n "$(kubectl kustomize "$folder")" ]; }
    check "kustomize builds $folder" builds
done
all_listed() {
    local file missing=0
    for file in config/samples/*.yaml; do
        file=${file##*/}
        [ "$file" = kustomization.yaml ] || grep -qx "  - $file" config/samples/kustomization.yaml || { echo "$file is not in the kustomization"; missing=1; }
        head -n 1 "config/samples/$file" | grep -q '^# ' || { echo "$file does not begin with what it shows"; missing=1; }
    done
    return $missing
}
check "every sample is listed and says what it shows" all_listed

# --- a real server judges ---------------------------------------------------------------------------------------------
export KUBECONFIG=${SPILLWAY_KUBECONFIG:-${KUBECONFIG:-}}
if [ -n "$KUBECONFIG" ] && kubectl version --request-timeout=5s >/dev/null 2>&1; then
    # In namespace default, which is always there; under a name that no installation has, or its objects would count as changes of them.
    judged() { helm template chart-test "$CHART" --namespace default "$@" | kubectl apply --server-side --force-conflicts --dry-run=server -f -; }
    check "the server takes the defaults" judged
    check "the server takes one namespace" judged --set namespaceScope=default
    check "the server takes one replica without a policy" judged --set replicaCount=1 --set networkPolicy.enabled=false
    check "the server takes a closed policy" judged --set 'networkPolicy.apiServer.cidrs={10.0.0.1/32}' --set 'networkPolicy.ingressFrom[0].podSelector.matchLabels.a=b'
    if kubectl get crd agentpools.spillway.dev >/dev/null 2>&1; then
        samples() { kubectl kustomize config/samples | sed 's/^  namespace: demo$/  namespace: default/' | kubectl apply --server-side --force-conflicts --dry-run=server -f -; }
        check "the server takes the samples" samples
    else
        echo "skip the server takes the samples: it has no CustomResourceDefinitions of Spillway"
    fi
else
    echo "skip a real server judges: no SPILLWAY_KUBECONFIG or KUBECONFIG with a server that answers"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
