#!/usr/bin/env bash
# Every object of the chart's renderings and of config/, under kubeconform: unknown fields, wrong types and missing fields are refused,
# without a server. The schemas are Kubernetes' own, from the description of its API in the module of the local cluster, and those of
# our CustomResourceDefinitions. `make chart-conform` builds the programs. It needs helm and kubectl on PATH.
#
# KUBECONFORM, CONFORM: the programs (default: on PATH). SWAGGER: the description of the API.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
PATH=$PATH:/usr/local/go/bin
kubeconform=${KUBECONFORM:-kubeconform} conform=${CONFORM:-conform}
for tool in helm kubectl "$kubeconform" "$conform"; do
    command -v "$tool" > /dev/null || { echo "chart-conform: $tool is missing. Try: make chart-conform" >&2; exit 2; }
done
swagger=${SWAGGER:-$(cd e2e/cluster/mods/kubernetes && go list -m -f '{{.Dir}}' k8s.io/kubernetes)/api/openapi-spec/swagger.json}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work/helm/cache HELM_CONFIG_HOME=$work/helm/config HELM_DATA_HOME=$work/helm/data
"$conform" "$swagger" "$work/schemas" crds/*.spillway.dev.yaml || exit 1

passed=0 failed=0
judge() { # reads objects. A kind without a schema is an error, but for one of the Prometheus operator and one of Cilium.
    "$kubeconform" -strict -summary -skip monitoring.coreos.com/v1/ServiceMonitor,cilium.io/v2/CiliumNetworkPolicy \
        -schema-location "$work/schemas/{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json" -
}
check() { # check NAME CMD... : CMD prints objects that are all valid
    local name=$1 output; shift
    "$@" > "$work/objects" 2> "$work/errors" || { failed=$((failed + 1)); echo "FAIL $name"; cat "$work/errors"; return; }
    if output=$(judge < "$work/objects" 2>&1) && ! grep -q '^Summary: 0 resources' <<<"$output"; then
        passed=$((passed + 1)); echo "ok   $name: $(sed -n 's/^Summary: \([0-9]* resources\).*/\1/p' <<<"$output")"
    else
        failed=$((failed + 1)); echo "FAIL $name"; sed 's/^/     /' <<<"$output"
    fi
}
refused() { # refused NAME TEXT : the objects on standard input are not valid
    local output
    if output=$(judge 2>&1) || ! grep -qF "$2" <<<"$output"; then failed=$((failed + 1)); echo "FAIL $1"; echo "$output"; else passed=$((passed + 1)); echo "ok   $1"; fi
}
render() { helm template spillway charts/spillway --namespace spillway-system "$@"; }

refused "an unknown field is refused" "additional properties 'replica' not allowed" \
    <<<'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"replica":1,"selector":{},"template":{}}}'
refused "a wrong type is refused" "got string, want integer" \
    <<<'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"replicas":"1","selector":{},"template":{}}}'
refused "an unknown field of a kind of Spillway is refused" "additional properties 'typ' not allowed" \
    <<<'{"apiVersion":"spillway.dev/v1alpha1","kind":"AgentPool","metadata":{"name":"a"},"spec":{"type":"free","typ":"free","agent":{"image":"a","command":["a"]}}}'
refused "a kind without a schema is refused" "could not find schema" <<<'{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a"}}'
check "the defaults" render
# The combinations of tests/chart.sh.
mapfile -t sets < <(sed -n '/^sets=(/,/^)/p' tests/chart.sh | sed '1d;$d')
[ "${#sets[@]}" -gt 20 ] || { echo "the list of combinations in tests/chart.sh was not found" >&2; exit 1; }
eval "sets=($(printf '%s\n' "${sets[@]}"))"
for entry in "${sets[@]}"; do
    read -ra flags <<<"${entry#*|}"
    check "the chart with ${entry%%|*}" render "${flags[@]}"
done
for folder in config/default config/samples config/samples/codex config/samples/toolsets config/samples/toolsets/*/; do
    check "$folder" kubectl kustomize "$folder"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
