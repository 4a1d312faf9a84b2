# Checks of the chart and of agents' pods against several versions of Kubernetes, without a server: that the rendering does not
# depend on the version, and that the API of each version that the local cluster can have knows every kind and field. The APIs are
# those of the modules that the cluster is built from (Go and the module proxy, or a filled cache of modules). tests/chart.sh
# sources this file, which uses its functions (check, refused, render).
# shellcheck shell=bash
# shellcheck disable=SC2154  # work and CHART are tests/chart.sh's
oldest=$(sed -n 's/^kubeVersion: ">=\(.*\)-0"$/\1/p' "$CHART/Chart.yaml")
same_rendering() { render > "$work/any" && render --kube-version "$1" > "$work/one" && diff "$work/any" "$work/one"; }
# With the suffix that a distribution adds.
for version in "$oldest" "$oldest-gke.1" $(e2e/cluster/cluster versions | cut -d ' ' -f 2); do
    check "Kubernetes $version: the same rendering" same_rendering "v$version"
done
check "an older Kubernetes is refused" refused "incompatible with Kubernetes v1.30.14" render --kube-version v1.30.14

# json FILE... : the objects of YAML files, one after the other. kubectl needs no server for it.
json() { local file; for file in "$@"; do kubectl annotate --local --overwrite -o json -f "$file" spillway.dev/checked=yes || return 1; done; }
# lacking MINOR FILE... : what that version does not have of the objects in JSON files
lacking() {
    local module=kubernetes-$1 folder; shift
    [ -d "e2e/cluster/mods/$module" ] || module=kubernetes
    folder=$(cd "e2e/cluster/mods/$module" && PATH="$PATH:/usr/local/go/bin" go mod download -json k8s.io/kubernetes | jq -er .Dir) || { echo "its module cannot be fetched"; return; }
    jq -rn --slurpfile swagger "$folder/api/openapi-spec/swagger.json" -f tests/chart-kubernetes.jq "$@" 2>&1 || echo "jq failed"
}
known() { local found; found=$(lacking "$@") || return 1; [ -z "$found" ] || { echo "$found"; return 1; }; }
unknown() { local text=$1 found; shift; found=$(lacking "$@"); grep -qF -- "$text" <<<"$found" || { echo "found: $found"; return 1; }; }
schema_objects() {
    render --set sandbox.nodeProfile.enabled=true --set artifacts.enabled=true --set gateway.external.enabled=true > "$work/all.yaml" &&
        json "$work/all.yaml" > "$work/all.json" &&
        jq '.spec.containers[0].resizePolicies = [] | .spec.hostUsers = "no" | del(.spec.containers[0].name)' tests/agent-pod.json > "$work/wrong.json" &&
        jq '.apiVersion = "policy/v1beta1" | .kind = "PodSecurityPolicy"' tests/agent-pod.json > "$work/old.json"
}
check "objects for the APIs of all versions" schema_objects
for version in $(e2e/cluster/cluster versions | cut -d ' ' -f 1); do
    check "Kubernetes $version has every field of the chart" known "$version" "$work/all.json"
    check "Kubernetes $version has every field of an agent's pod" known "$version" tests/agent-pod.json
    check "Kubernetes $version: a field that it has not is found" unknown "resizePolicies: there is no such field" "$version" "$work/wrong.json"
    check "Kubernetes $version: so is a required one that is missing" unknown "name: required" "$version" "$work/wrong.json"
    check "Kubernetes $version: and a wrong type" unknown "hostUsers: true or false is expected" "$version" "$work/wrong.json"
    check "Kubernetes $version: and a kind" unknown "there is no kind policy/v1beta1/PodSecurityPolicy" "$version" "$work/old.json"
done
