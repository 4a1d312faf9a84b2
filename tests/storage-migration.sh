#!/usr/bin/env bash
# From v1alpha1 to a v1beta1 with a made-up field, on a real API server, as docs/adr/0071-storage-version-migration.md decides. It uses a
# copy of the CRD of AgentPools in a group of its own, which is deleted at the end, so it disturbs nothing.
#
#   e2e/cluster/cluster run tests/storage-migration.sh
# shellcheck disable=SC2016  # checks that are evaluated
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
for tool in kubectl jq; do command -v "$tool" > /dev/null || { echo "storage-migration: $tool is not on PATH" >&2; exit 2; }; done
group=migration.spillway.dev crd=agentpools.migration.spillway.dev namespace=spillway-migration-test
work=$(mktemp -d)
# What this API server serves for a minute must not be in the cache of other calls of kubectl.
export KUBECACHEDIR=$work/cache
finish() {
    kubectl delete namespace "$namespace" --ignore-not-found --timeout=1m
    kubectl delete crd "$crd" --ignore-not-found --timeout=1m
    rm -rf "$work"
} > /dev/null 2>&1
trap finish EXIT

passed=0 failed=0
check() {
    local name=$1 output; shift
    if output=$("$@" 2>&1); then passed=$((passed + 1)); echo "ok   $name"; else failed=$((failed + 1)); echo "FAIL $name"; echo "     ${output//$'\n'/$'\n'     }" | tail -n 15; fi
}
refused() { local text=$1 output; shift; if output=$("$@" 2>&1); then echo "was not refused"; return 1; fi; grep -qF -- "$text" <<<"$output" || { echo "$output"; return 1; }; }

# with FILTER : applies the CRD, changed by a filter of jq, and waits until the API server serves it
kubectl create --dry-run=client -o json -f crds/agentpools.spillway.dev.yaml |
    jq --arg group "$group" --arg name "$crd" '.metadata = {name: $name} | .spec.group = $group | .spec.names |= del(.shortNames, .categories)' > "$work/crd.json" || exit 1
with() {
    jq "$1" "$work/crd.json" | kubectl apply --server-side --force-conflicts -f - && kubectl wait --for=condition=Established "crd/$crd" --timeout=30s && sleep 2
}
made_up='.schema.openAPIV3Schema.properties.spec.properties.madeUp = {type: "string", maxLength: 63}'
second_version='.spec.versions += [.spec.versions[0] | .name = "v1beta1"]'
# The versions that have the made-up field, and the one that is stored.
only_new="$second_version | (.spec.versions[1] | .storage) = false | .spec.versions[1] |= ($made_up)"
first="$second_version | .spec.versions[1].storage = false | .spec.versions[] |= ($made_up)"
second="$first | .spec.versions[0].storage = false | .spec.versions[1].storage = true"
third="$second | .spec.versions |= [.[1]]"

pools() { # pools VERSION ARGUMENTS...
    local version=$1; shift
    kubectl -n "$namespace" "${@:1:1}" "agentpools.$version.$group" "${@:2}"
}
pool() { # pool VERSION NAME [FIELDS]
    printf '{"apiVersion":"%s/%s","kind":"AgentPool","metadata":{"name":"%s"},"spec":{"type":"free","agent":{"image":"a","command":["a"]}%s}}' "$group" "$1" "$2" "${3:-}" |
        kubectl -n "$namespace" apply --server-side --field-manager=test --validate=false -f -
}
field_is() { [ "$(pools "$1" get "$2" -o jsonpath='{.spec.madeUp}')" = "$3" ]; }
stored() { [ "$(kubectl get "crd/$crd" -o jsonpath='{.status.storedVersions}')" = "$1" ]; }
# A writer that knows one version only: reads, changes, replaces.
rewrite() { pools "$1" get "$2" -o json | jq '.metadata.annotations.touched = "yes"' | kubectl -n "$namespace" replace -f -; }

kubectl create namespace "$namespace" > /dev/null || exit 1
check "v1alpha1 is installed" with .
check "an object is stored in it" pool v1alpha1 old
check "v1beta1 with a field of its own is served" with "$only_new"
check "an object has the field" pool v1beta1 lost ',"madeUp":"x"'
check "and a writer of v1alpha1 removes it: the fields must be the same" eval 'field_is v1beta1 lost x; rewrite v1alpha1 lost && field_is v1beta1 lost ""'
check "first release: both versions have the field" with "$first"
check "an object has it" pool v1beta1 kept ',"madeUp":"x"'
check "a writer of v1alpha1 keeps it" eval 'rewrite v1alpha1 kept && field_is v1beta1 kept x && field_is v1alpha1 kept x'
check "second release: v1beta1 is stored" with "$second"
check "objects of both versions are listed" stored '["v1alpha1","v1beta1"]'
check "roll back to the first release" with "$first"
check "with all objects" eval '[ "$(pools v1alpha1 get -o name | wc -l)" = 3 ] && field_is v1alpha1 kept x'
check "and forward again" with "$second"
check "third release: v1alpha1 cannot be removed while it is listed" refused "must remain in spec.versions" with "$third"
migrate() { # step 4 of the record
    local name
    for name in $(pools v1beta1 get -o jsonpath='{.items[*].metadata.name}'); do
        pools v1beta1 get "$name" -o json | kubectl -n "$namespace" replace -f - || return 1
    done
    kubectl patch "crd/$crd" --subresource=status --type=merge -p '{"status":{"storedVersions":["v1beta1"]}}'
}
check "objects are rewritten" migrate
check "and only v1beta1 is listed" stored '["v1beta1"]'
check "third release: v1alpha1 is removed" with "$third"
check "all objects are there" eval '[ "$(pools v1beta1 get -o name | wc -l)" = 3 ] && field_is v1beta1 kept x'
# Without kubectl's cache of what is served
check "and v1alpha1 is not served" refused "could not find the requested resource" kubectl get --raw "/apis/$group/v1alpha1/namespaces/$namespace/agentpools/old"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
