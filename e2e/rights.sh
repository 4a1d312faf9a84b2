#!/usr/bin/env bash
# The rights of the chart's roles, tried by the tests of the whole system: their controllers and gateways have accounts with these rights,
# and the audit log says which of them are used. The demo has the chart's own accounts, whose calls count too. e2e/test.sh calls this with
# helm and kubectl on PATH, as in e2e/cluster/cluster run.
#
# e2e/rights.sh grant FOLDER                 makes the accounts, and writes FOLDER/controller.kubeconfig and FOLDER/gateway.kubeconfig
# e2e/rights.sh revoke FOLDER                removes the accounts and their rights, so that the chart can be installed
# e2e/rights.sh judge FOLDER AUDIT_LOG...    compares the rights in FOLDER with the calls: fails if a right was never used, unless
#                                            e2e/rights-unused.txt says why, and if a call was refused for want of a right that the
#                                            chart does not give
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
namespace=spillway-e2e
unused=e2e/rights-unused.txt
action=${1:?grant, revoke or judge} folder=${2:?a folder}
shift 2

# The roles for the release's own namespace hold in all namespaces here: each test has its lease and its certificates in its own.
everywhere='
    if .metadata.namespace != $namespace then .
    elif .kind == "Role" then .kind = "ClusterRole" | .metadata.name += "-own" | del(.metadata.namespace)
    elif .kind == "RoleBinding" then .kind = "ClusterRoleBinding" | .metadata.name += "-own" | .roleRef.kind = "ClusterRole"
        | .roleRef.name += "-own" | del(.metadata.namespace)
    else . end'

# Teams let the gateway read the Secrets that their pools name. Here it may read all.
teams() {
    kubectl create clusterrole spillway-e2e-teams --verb=get --resource=secrets --dry-run=client -o json
    kubectl create clusterrolebinding spillway-e2e-teams --clusterrole=spillway-e2e-teams --serviceaccount="$namespace:spillway-gateway" \
        --dry-run=client -o json
}

grant() {
    mkdir -p "$folder"
    kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - > /dev/null
    helm template spillway charts/spillway --namespace "$namespace" --set gateway.external.enabled=true \
        --show-only templates/serviceaccount.yaml --show-only templates/rbac.yaml |
        kubectl create --dry-run=client -o json -f - |
        jq --arg namespace "$namespace" "(if .kind == \"List\" then .items[] else . end) | $everywhere" > "$folder/roles.json"
    teams > "$folder/teams.json"
    kubectl apply -f "$folder/roles.json" -f "$folder/teams.json" > /dev/null
    local account
    for account in controller gateway; do
        local name=spillway-gateway token
        [ "$account" = gateway ] || name=spillway
        token=$(kubectl create token "$name" --namespace "$namespace" --duration=8h)
        kubectl config view --raw --minify -o json | jq --arg token "$token" '.users[].user = {token: $token}' > "$folder/$account.kubeconfig"
    done
}

revoke() {
    kubectl delete -f "$folder/roles.json" -f "$folder/teams.json" > /dev/null
    kubectl delete namespace "$namespace" > /dev/null
    rm "$folder/controller.kubeconfig" "$folder/gateway.kubeconfig"
}

# Each right as a line: ACCOUNT GROUP RESOURCE NAME VERB. The group of the core is `core`. NAME -: any.
granted() {
    jq -rs '
        ([.[] | select(.kind | endswith("Binding")) | {key: (.roleRef.kind + "/" + .roleRef.name), value: .subjects[0].name}] | from_entries) as $holders
        | .[] | select(.rules) | $holders[.kind + "/" + .metadata.name] as $account | .rules[]
        | . as $rule | .apiGroups[] as $group | .resources[] as $resource | ($rule.resourceNames // ["-"])[] as $name | .verbs[]
        | [$account, if $group == "" then "core" else $group end, $resource, $name, .] | join(" ")' "$folder/roles.json" | sort -u
}

# The calls of both accounts in audit logs, and of those of the installed chart: DECISION NAMESPACE ACCOUNT GROUP RESOURCE NAME VERB.
called() {
    grep -hE "\"username\":\"system:serviceaccount:($namespace|spillway-system):spillway(-gateway)?\"" "$@" |
        jq -Rr '
            fromjson? | select(.objectRef.resource) | .objectRef as $object
            # A patch that made the object was authorized as a create too.
            | (.verb, (if .verb == "patch" and .responseStatus.code == 201 then "create" else empty end)) as $verb
            | [.annotations["authorization.k8s.io/decision"] // "none", $object.namespace // "-", (.user.username | split(":") | last), $object.apiGroup // "core",
               $object.resource + (if $object.subresource then "/" + $object.subresource else "" end), $object.name // "-", $verb]
            | join(" ")' | sort -u
}

judge() {
    local work failed=0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' RETURN
    granted > "$work/granted"
    called "$@" > "$work/called"
    awk '$1 == "allow" { print $3, $4, $5, $6, $7; print $3, $4, $5, "-", $7 }' "$work/called" | sort -u > "$work/used"
    comm -23 "$work/granted" "$work/used" > "$work/unused"
    grep -v '^#' "$unused" | sed '/^$/d; s/ *: .*//' | sort > "$work/expected"
    echo "$(wc -l < "$work/granted") rights of the chart, $(wc -l < "$work/unused") of them not used"
    if ! diff "$work/expected" "$work/unused" > "$work/diff"; then
        sed -n 's/^> /a right that no test used (remove it from the chart, or say in '"${unused//\//\\/}"' why it is needed): /p
                s/^< /'"${unused//\//\\/}"' lists a right that is used, or that the chart does not give: /p' "$work/diff" >&2
        failed=1
    fi
    # An API server that starts refuses calls until it has read the roles. Then the same call is allowed later.
    sed -n 's/^allow //p' "$work/called" > "$work/allowed"
    sed -n 's/^forbid //p' "$work/called" | comm -23 - "$work/allowed" > "$work/refused"
    sed 's/^/a call was refused, because the chart gives no right for it: /' "$work/refused" >&2
    [ ! -s "$work/refused" ] || failed=1
    return $failed
}

"$action" "$@"
