#!/usr/bin/env bash
# Tests of charts/spillway and config/: that they render, refuse wrong values, agree with each other, and grant only the needed
# rights. They need helm and kubectl on PATH, as in `e2e/cluster/cluster run tests/chart.sh`, and Go for the APIs of several versions
# of Kubernetes.
#
#   tests/chart.sh           run the tests
#   tests/chart.sh --write   renew config/default from the chart
#
# If SPILLWAY_KUBECONFIG or KUBECONFIG names a server that answers, that server checks the objects too. Nearly all of this is
# dry runs. Only the admission policies and rights are really tried, in a namespace of their own (spillway-chart-test-NUMBER),
# with policies and roles that apply only there. All of it is removed at the end, also after a failure. If policies of Spillway
# are installed, that part is skipped, because they would also apply to the test's pods.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
for tool in helm kubectl; do
    command -v "$tool" >/dev/null || { echo "chart: $tool is not on PATH. Try: e2e/cluster/cluster run tests/chart.sh" >&2; exit 2; }
done
CHART=charts/spillway
work=$(mktemp -d)
live='' cilium_crd=''
finish() {
    [ -z "$cilium_crd" ] || kubectl delete -f tests/cilium-crd.yaml > /dev/null
    # Policies are deleted first, so that none applies to the deletion of the namespace.
    if [ -n "$live" ]; then
        kubectl delete -f "$work/live.yaml" -f "$work/wide.yaml" --ignore-not-found --wait=false
        kubectl delete namespace "$live" --ignore-not-found --timeout=2m
    fi > /dev/null
    rm -rf "$work"
}
trap finish EXIT
# The user's Helm plugins, caches and settings must not change the rendering.
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
# Without Helm's labels and hooks, because Helm does not manage objects that kubectl applies.
default_objects() {
    local objects
    objects=$(without_crds --no-hooks) || return 1
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
    *) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
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
    "one gateway|--set gateway.replicaCount=1"
    "no gateway|--set gateway.replicaCount=0"
    "no admission policies|--set admissionPolicies.enabled=false"
    "exempt users|--set admissionPolicies.exemptUsers={admin,system:serviceaccount:a:b}"
    "canaries|--set agents.canaries={10.0.0.1:443,[fd00::1]:443}"
    "no network policy|--set networkPolicy.enabled=false"
    "closed network policy|--set networkPolicy.apiServer.cidrs={10.0.0.1/32} --set networkPolicy.apiServer.ports={6443} --set networkPolicy.dns=false"
    "cilium|--set networkPolicy.flavor=cilium"
    "cilium with webhooks|--set networkPolicy.flavor=cilium --set networkPolicy.dns=false --set-json=notifications.webhooks=[{\"name\":\"ops\",\"secretRef\":{\"name\":\"s\"}}]"
    "addresses of origins|--set gateway.modelOrigins[0].origin=https://a.example --set gateway.modelOrigins[0].cidrs={192.0.2.0/24,2001:db8::/32}"
    "artifacts on a shared volume|--set artifacts.enabled=true"
    "artifacts on one node|--set artifacts.enabled=true --set artifacts.volume.accessModes={ReadWriteOnce} --set artifacts.volume.oneNode=true --set artifacts.volume.storageClassName=fast"
    "artifacts on a volume that exists|--set artifacts.enabled=true --set artifacts.volume.existingClaim=mine"
    "artifacts in a bucket|--set artifacts.enabled=true --set artifacts.store=S3 --set artifacts.s3.bucket=team-b --set artifacts.s3.credentialsSecret=s --set artifacts.s3.cidrs={192.0.2.0/24}"
    "the profile on nodes|--set sandbox.nodeProfile.enabled=true --set sandbox.nodeProfile.namespace=nodes --set-json=sandbox.nodeProfile.tolerations=[{\"operator\":\"Exists\"}]"
    "the profile on nodes, cilium, one namespace|--set sandbox.nodeProfile.enabled=true --set networkPolicy.flavor=cilium --set namespaceScope=team-a"
    "no lookup|--set networkPolicy.apiServer.lookup=false"
    "service monitor|--set serviceMonitor.enabled=true"
    "one namespace, global values, hooks of no account|--set namespaceScope=team-a --set global.priorityClassName=p --set global.imagePullSecrets[0].name=g --set global.commonLabels.team=a --set rbac.create=false"
    "pods with more of all|--set-json=volumes=[{\"name\":\"v\",\"emptyDir\":{}}] --set-json=volumeMounts=[{\"name\":\"v\",\"mountPath\":\"/tmp\"}] --set-json=extraEnv=[{\"name\":\"A\",\"value\":\"b\"}] --set-json=hostAliases=[{\"ip\":\"192.0.2.1\",\"hostnames\":[\"a.example\"]}] --set-json=gateway.volumes=[{\"name\":\"v\",\"emptyDir\":{}}] --set-json=gateway.volumeMounts=[{\"name\":\"v\",\"mountPath\":\"/tmp\"}] --set-json=gateway.extraEnv=[{\"name\":\"A\",\"value\":\"b\"}] --set-json=gateway.hostAliases=[{\"ip\":\"192.0.2.1\",\"hostnames\":[\"a.example\"]}] --set deploymentAnnotations.a=b --set notifications.webhooks[0].name=ops --set notifications.webhooks[0].secretRef.name=s"
    "no CRDs, no roles, own account|--set crds.install=false --set rbac.create=false --set rbac.aggregate=false --set serviceAccount.create=false --set serviceAccount.name=mine --set gateway.serviceAccount.create=false --set gateway.serviceAccount.name=other"
    "everything set|--set image.digest=sha256:$(printf 'a%.0s' {1..64}) --set priorityClassName=p --set nodeSelector.disk=ssd --set-json=tolerations=[{\"operator\":\"Exists\"}] --set podAnnotations.a=b --set podLabels.a=b --set imagePullSecrets[0].name=s --set extraArgs={--x} --set-json=topologySpreadConstraints=[] --set logFormat=text --set gateway.extraArgs={--x} --set-json=gateway.topologySpreadConstraints=[] --set-json=gateway.affinity={\"podAntiAffinity\":{}} --set gateway.resources.limits.cpu=1 --set gateway.terminationGracePeriodSeconds=60"
)
for entry in "${sets[@]}"; do
    read -ra flags <<<"${entry#*|}"
    check "lint with ${entry%%|*}" helm lint --strict "$CHART" "${flags[@]}"
    # kubectl parses every document, without a server.
    parses() { render "${flags[@]}" > "$work/render.yaml" && printf 'resources: [render.yaml]\n' > "$work/kustomization.yaml" && kubectl kustomize "$work" >/dev/null; }
    check "render with ${entry%%|*}" parses
done
budgets_are() { local want=$1; shift; [ "$(without_crds "$@" | grep -c '^kind: PodDisruptionBudget$')" = "$want" ]; }
check "two replicas of each have a disruption budget each" budgets_are 2
check "one controller has none" budgets_are 1 --set replicaCount=1
check "one gateway has none" budgets_are 1 --set gateway.replicaCount=1
check "budgets can be turned off" budgets_are 0 --set podDisruptionBudget.enabled=false
check "the network policy can be turned off" lacks "kind: NetworkPolicy" without_crds --set networkPolicy.enabled=false
# egress COMPONENT [FLAGS...] : the egress rules in the NetworkPolicy of a component
egress() { local component=$1; shift; without_crds --show-only templates/networkpolicy.yaml "$@" | awk -v name="spillway$component" '/^---/ { on = 0 } /^  name: / { on = $2 == name } /^  egress:/ { if (on) out = 1; else out = 0 } /^---/ { out = 0 } out'; }
two_origins='gateway.modelOrigins=[{"origin":"https://a.example","cidrs":["192.0.2.0/24"]},{"origin":"https://B.example:8443","allowPrivate":true},{"origin":"https://203.0.113.9"}]'
check "an origin with cidrs is reached at these addresses only" says 'cidr: "192.0.2.0/24"' egress -gateway --set-json "$two_origins"
only_said='gateway.modelOrigins=[{"origin":"https://a.example","cidrs":["192.0.2.0/24"]}],git.origins=[]'
check "and then no public address is open" lacks 0.0.0.0/0 egress -gateway --set-json "$only_said"
check "but for the ports that pools may reach" says 0.0.0.0/0 egress -gateway --set-json "$only_said" --set 'egress.ports={443}'
check "which are closed where pools reach nothing" lacks 0.0.0.0/0 egress -gateway --set-json "$only_said" --set 'egress.ports={443}' --set egress.enabled=false
check "a git server with cidrs is reached at these addresses" says 'cidr: "192.0.2.8/32"' egress -gateway --set-json 'git.origins=[{"origin":"https://git.example","cidrs":["192.0.2.8/32"]}]'
check "controller and gateways read the rules of git" says 'https://git.example\"}' without_crds --set-json 'git.origins=[{"origin":"https://git.example"}]'
check "controller and gateways read the rules of egress" says 'enabled\":false' without_crds --set egress.enabled=false
bucket() { without_crds --set artifacts.enabled=true --set artifacts.store=S3 --set artifacts.s3.bucket=team-b "$@"; }
check "no artifacts by default" says 'artifacts.json: "{}"' without_crds
check "artifacts on a volume: a claim" says "kind: PersistentVolumeClaim" without_crds --set artifacts.enabled=true
check "which is not made where one exists" lacks "kind: PersistentVolumeClaim" without_crds --set artifacts.enabled=true --set artifacts.volume.existingClaim=mine
check "several gateways need a volume that they can share" refused "artifacts.volume.oneNode" without_crds --set artifacts.enabled=true --set 'artifacts.volume.accessModes={ReadWriteOnce}'
check "or one node" says "podAffinity:" without_crds --set artifacts.enabled=true --set 'artifacts.volume.accessModes={ReadWriteOnce}' --set artifacts.volume.oneNode=true
check "people read artifacts through the API server" says 'resourceNames: ["https:spillway-gateway:https"]' without_crds --set artifacts.enabled=true
check "unless the platform says no" lacks "https:spillway-gateway:https" without_crds --set artifacts.enabled=true --set artifacts.people=false
check "artifacts in a bucket need its name" refused "artifacts.s3.bucket is empty" without_crds --set artifacts.enabled=true --set artifacts.store=S3
check "a bucket needs no volume" lacks "kind: PersistentVolumeClaim" bucket
check "a bucket with addresses is reached at these" says 'cidr: "192.0.2.9/32"' egress -gateway --set artifacts.enabled=true --set artifacts.store=S3 --set artifacts.s3.bucket=team-b --set 'artifacts.s3.cidrs={192.0.2.9/32}'
check "the host of a bucket is known" says 's3.eu-west-1.amazonaws.com' bucket --set artifacts.s3.region=eu-west-1 --set networkPolicy.flavor=cilium --show-only templates/ciliumnetworkpolicy.yaml
check "unless another origin has none" says 0.0.0.0/0 egress -gateway --set-json "$two_origins"
same_file() { [ "$(without_crds --show-only templates/gateway.yaml --set-json "$only_said")" = "$(without_crds --show-only templates/gateway.yaml --set-json 'gateway.modelOrigins=[{"origin":"https://a.example"}],git.origins=[]')" ]; }
api_server='networkPolicy.apiServer.cidrs={192.0.2.7/32}'
for component in '' -gateway; do
    check "an API server with cidrs is reached at these addresses only (spillway$component)" says 'cidr: "192.0.2.7/32"' egress "$component" --set "$api_server"
done
check "the gateway gets no addresses, and is not restarted for them" same_file
cilium() { without_crds --set networkPolicy.flavor=cilium --set-json "$two_origins" "$@"; }
check "cilium: origins by name" says 'matchName: "a.example"' cilium --show-only templates/ciliumnetworkpolicy.yaml --set-json 'gateway.modelOrigins=[{"origin":"https://A.example"}]'
check "cilium: an origin whose name is an address" says 'toCIDR: ["203.0.113.9/32"]' cilium --show-only templates/ciliumnetworkpolicy.yaml
check "cilium: an origin with cidrs" says 'toCIDR: ["192.0.2.0/24"]' cilium --show-only templates/ciliumnetworkpolicy.yaml
check "cilium: the API server by its entity" says 'toEntities: [kube-apiserver]' cilium --show-only templates/ciliumnetworkpolicy.yaml
check "cilium: NetworkPolicies allow no other egress" lacks ipBlock egress -gateway --set networkPolicy.flavor=cilium
check "cilium: except to the governor" says "port: 8443" egress -gateway --set networkPolicy.flavor=cilium
check "cilium: nor for the controller" lacks ipBlock egress "" --set networkPolicy.flavor=cilium
for flavor in kubernetes cilium; do
    for component in '' -gateway; do
        bridges() { egress "$component" --set networkPolicy.flavor=$flavor "$@" | grep -A9 'port: 8444'; }
        check "$flavor: bridges are reached in all namespaces (spillway$component)" says "namespaceSelector: {}" bridges
        check "$flavor: or in the one that is served (spillway$component)" says "kubernetes.io/metadata.name: team-a" bridges --set namespaceScope=team-a
    done
done
check "without flavor cilium no Cilium object is rendered" lacks cilium.io without_crds
check "the service monitor is off by default" lacks "kind: ServiceMonitor" without_crds
check "the service monitor can be turned on" says "kind: ServiceMonitor" without_crds --set serviceMonitor.enabled=true
check "one namespace: the controller is told" says "--namespace=team-a" without_crds --set namespaceScope=team-a
# told TEMPLATE ARGUMENT [FLAGS...] : whether the container of the template has ARGUMENT
told() { local template=$1 argument=$2; shift 2; without_crds "$@" --show-only "templates/$template.yaml" | sed -n '/^          args:/,/^          env:/s/^            - //p' | grep -qxF -- "$argument"; }
for argument in --agent-image-pull-policy=IfNotPresent --gateway-service=spillway-gateway --gateway-account=spillway-system:spillway-gateway \
    --governor-listen=0.0.0.0:8443 --ca-secret=spillway-ca --gateway-tls-secret=spillway-gateway-tls --lease-name=spillway-controller \
    '"--pod-label=app.kubernetes.io/component=controller"' '"--pod-label=app.kubernetes.io/name=spillway"' '"--pod-label=app.kubernetes.io/instance=spillway"'; do
    check "the controller is told $argument" told deployment "$argument"
done
for argument in --listen=0.0.0.0:8443 --health-listen=0.0.0.0:8080 --lease-name=spillway-controller --tls-secret=spillway-gateway-tls \
    --governor-token-file=/var/run/secrets/spillway.dev/governor/token; do
    check "the gateway is told $argument" told gateway "$argument"
done
check "the controller is told the canaries" told deployment '"--canary=10.0.0.1:443"' --set 'agents.canaries={10.0.0.1:443}'
no_canary() { ! told deployment '"--canary=10.0.0.1:443"' && ! without_crds | grep -e --canary; }
check "and none by default" no_canary
cluster_budget() { without_crds --show-only templates/deployment.yaml "$@" | sed -n 's/^ *- "--cluster-budget=\(.*\)"$/\1/p' | sed 's/\\"/"/g'; }
kept='"reservations":[{"name":"scheduler","percent":20,"poolTypes":["scheduler"]}]'
check "the controller keeps ClusterBudget/default" says "\"tokens\":{\"limits\":[{\"name\":\"hourly\",\"tokens\":100000,\"window\":\"Hour\"}],$kept}" cluster_budget
check "with the numbers of a profile" says '"tokens":2000000' cluster_budget --set clusterBudget.profile=coding
check "a Budget without limits gets these" says "\"budget\":{\"agents\":{$kept},\"tokens\":{\"limits\":[{\"name\":\"hourly\",\"tokens\":2000000,\"window\":\"Hour\"}],$kept}}" cluster_budget --set clusterBudget.profile=coding
check "a fifth of a namespace's agents is kept for schedulers" says "\"perNamespace\":{\"agents\":{\"maxConcurrent\":100,$kept}" cluster_budget
check "of more agents, if the values allow more" says "\"agents\":{\"maxConcurrent\":300,$kept}" cluster_budget --set clusterBudget.spec.perNamespace.agents.maxConcurrent=300
check "and at most of spec.agents.maxTotal" says "\"agents\":{\"maxConcurrent\":7,$kept}" cluster_budget --set clusterBudget.spec.agents.maxTotal=7
check "with the fields of clusterBudget.spec" says '"agents":{"maxTotal":7}' cluster_budget --set clusterBudget.spec.agents.maxTotal=7
check "clusterBudget.create=false keeps none" lacks cluster-budget without_crds --set clusterBudget.create=false
check "a release for one namespace keeps none" lacks cluster-budget without_crds --set namespaceScope=team-a
check "the gateway's account is told by its own name" told deployment --gateway-account=spillway-system:other --set gateway.serviceAccount.create=false --set gateway.serviceAccount.name=other
agent_image() { without_crds "$@" --show-only templates/deployment.yaml | sed -n '/SPILLWAY_AGENT_IMAGE/{n;s/^ *value: //p}'; }
check "agents run the release's own image" says '"r/s:dev"' agent_image --set image.repository=r/s --set image.tag=dev
check "agents run its digest" says "spillway@sha256:" agent_image --set "image.digest=sha256:$(printf 'a%.0s' {1..64})"
check "the gateway's token is for the governor" says "audience: spillway.dev/governor" without_crds --show-only templates/gateway.yaml
check "the controller has no such token" lacks "audience:" without_crds --show-only templates/deployment.yaml
check "every policy has its binding" test "$(without_crds | grep -c '^kind: ValidatingAdmissionPolicy$')" = "$(without_crds | grep -c '^kind: ValidatingAdmissionPolicyBinding$')"
check "there are eleven of them" test "$(without_crds | grep -c '^kind: ValidatingAdmissionPolicy$')" = 11
check "the one on what is not supported warns and refuses nothing" says "validationActions: [Warn]" without_crds --show-only templates/unsupportedpolicy.yaml
pod_security() { without_crds --show-only templates/podsecuritypolicy.yaml "$@"; }
check "the one on the namespaces of pools warns and refuses nothing" says "validationActions: [Warn]" pod_security
check "unless it is to refuse new pools" says "validationActions: [Deny]" pod_security --set admissionPolicies.podSecurity=Deny
check "it can be left out" lacks pod-security without_crds --set admissionPolicies.podSecurity=Ignore
check "they can be turned off" lacks "kind: ValidatingAdmissionPolicy" without_crds --set admissionPolicies.enabled=false
policies() { without_crds --show-only templates/admissionpolicies.yaml --show-only templates/controllerpolicies.yaml --show-only templates/unsupportedpolicy.yaml --show-only templates/podsecuritypolicy.yaml "$@"; }
check "labels are the controller's alone" says 'username in ["system:serviceaccount:spillway-system:spillway"])' policies
check "and those of exempt users" says 'username in ["system:serviceaccount:spillway-system:spillway","a\"b"])' policies --set-json 'admissionPolicies.exemptUsers=["a\"b"]'
check "and of the account that is named" says '"system:serviceaccount:spillway-system:mine"' policies --set serviceAccount.create=false --set serviceAccount.name=mine
own_policies() { local account=$1; shift; [ "$(policies "$@" | grep -cF "expression: request.userInfo.username == \"system:serviceaccount:spillway-system:$account\"")" = 3 ]; }
check "the controller has three policies of its own" own_policies spillway
check "also under the account that is named" own_policies mine --set serviceAccount.create=false --set serviceAccount.name=mine
check "no Toolset is served in kube-* and in the release's own namespace" says "(!request.namespace.startsWith('kube-') && request.namespace != 'spillway-system')" without_crds --show-only templates/controllerpolicies.yaml
check "in its own namespace if it serves no other" says "(!request.namespace.startsWith('kube-'))" without_crds --show-only templates/controllerpolicies.yaml --set namespaceScope=spillway-system
one_namespace_each() { # each policy names the namespaces it is for
    [ "$(policies --set namespaceScope=team-a | grep -c '^kind: ValidatingAdmissionPolicy$')" = "$(policies --set namespaceScope=team-a | grep -cE 'kubernetes.io/metadata.name(: (team-a|spillway-system))?$')" ]
}
check "one namespace: so are the policies" one_namespace_each
check "one namespace: only its agents reach the gateway" says "kubernetes.io/metadata.name: team-a" without_crds --set namespaceScope=team-a --show-only templates/networkpolicy.yaml
check "nobody outside the cluster reaches the gateway" lacks "Agents outside the cluster" without_crds --show-only templates/networkpolicy.yaml
check "except from gateway.external.cidrs" says 'cidr: "192.0.2.0/24"' without_crds --set gateway.external.enabled=true --set 'gateway.external.cidrs={192.0.2.0/24}' --show-only templates/networkpolicy.yaml
check "agents outside the cluster are not accepted by default" lacks "--external-agents" without_crds --show-only templates/gateway.yaml
check "and no gateway asks for the rights of users" lacks "subjectaccessreviews" without_crds --show-only templates/rbac.yaml
check "and are accepted with gateway.external.enabled" says "- --external-agents" without_crds --set gateway.external.enabled=true --show-only templates/gateway.yaml
check "gateways ask for the rights of users then" says "subjectaccessreviews" without_crds --set gateway.external.enabled=true --show-only templates/rbac.yaml
check "tokens of persons are accepted for the gateway's audience only" lacks "--user-audience" without_crds --show-only templates/gateway.yaml
check "and for gateway.external.audiences" says '"--user-audience=https://kubernetes.default.svc"' without_crds --set gateway.external.enabled=true --set 'gateway.external.audiences={https://kubernetes.default.svc}' --show-only templates/gateway.yaml
check "a digest overrides a tag" says "image: \"spillway/spillway@sha256:$(printf 'a%.0s' {1..64})\"" without_crds --set image.tag=dev --set "image.digest=sha256:$(printf 'a%.0s' {1..64})"
crds_are() { local want=$1; shift; [ "$(render "$@" | grep -c '^kind: CustomResourceDefinition$')" = "$want" ]; }
check "every CRD is installed" crds_are "$(find crds -name '*.spillway.dev.yaml' | wc -l)"
check "crds.install=false installs none" crds_are 0 --set crds.install=false
all_kept() { [ "$(render | grep -c 'helm.sh/resource-policy: keep')" = "$(render | grep -c '^kind: CustomResourceDefinition$')" ]; }
check "every CRD is kept by uninstall" all_kept

# --- least rights -----------------------------------------------------------------------------------------------------
check "no role holds a wildcard" lacks '*' without_crds --show-only templates/rbac.yaml
# rights [FLAGS...] : every rule of controller and gateway, one a line
rights() {
    without_crds "$@" --show-only templates/rbac.yaml | awk '
        /^---/ { kind = name = namespace = "" }
        /^kind: / { kind = $2 }
        /^  name: / { name = $2 }
        /^  namespace: / { namespace = $2 "/" }
        /^ *- apiGroups: / { names = "" }
        / (apiGroups|resources|resourceNames|verbs): / { field = $0; sub(/^[ -]*[a-zA-Z]+: /, "", field) }
        / apiGroups: / { groups = field }
        / resources: / { resources = field }
        / resourceNames: / { names = " " field }
        / verbs: / { print kind, namespace name, groups, resources names, field }' | sort
}
# One rule a line, each for calls that src/ makes. A right that is not in this list is refused.
work_rules='[""] [configmaps] [get, create]
[""] [configmaps] [spillway-ca] [list, watch, patch]
[""] [persistentvolumeclaims] [get, create, delete]
[""] [pods] [get, list, watch, create, delete]
[""] [resourcequotas, limitranges] [get, list, watch, create, patch, delete]
[""] [services, serviceaccounts] [get, create, patch]
[apps] [deployments] [get, create, patch]
[events.k8s.io] [events] [create, patch]
[networking.k8s.io] [networkpolicies] [get, create, patch]
[networking.k8s.io] [networkpolicies] [spillway-agents] [list, watch]
[spillway.dev] [agentpools/finalizers, agents/finalizers, budgets/finalizers, toolsets/finalizers] [update]
[spillway.dev] [agentpools/status, agents/status, breakers/status, budgets/status, grants/status, toolsets/status, workitems/status, workqueues/status] [patch]
[spillway.dev] [agentpools] [get, list, watch]
[spillway.dev] [agents] [get, list, watch, create, patch, delete]
[spillway.dev] [breakers] [default] [patch, delete]
[spillway.dev] [breakers] [get, list, watch, create]
[spillway.dev] [budgets] [default] [patch, delete]
[spillway.dev] [budgets] [get, list, watch, create]
[spillway.dev] [grants] [list, watch]
[spillway.dev] [toolsets] [get, list, watch]
[spillway.dev] [workitems] [get, list, watch, create, delete]
[spillway.dev] [workqueues] [get, list, watch]'
# expected WORK_ROLE CLUSTER_NAME : all rules, if WORK_ROLE has the rights for the namespaces
expected() {
    local rule
    # A release for one namespace does not keep ClusterBudget/default.
    [ "$1" != "ClusterRole $2" ] || printf '%s\n' "$1 [spillway.dev] [clusterbudgets] [create]" "$1 [spillway.dev] [clusterbudgets] [default] [patch]" > "$work/keeps"
    [ "$1" = "ClusterRole $2" ] || : > "$work/keeps"
    { while read -r rule; do echo "$1 $rule"; done <<<"$work_rules"
      cat "$work/keeps" - <<R
ClusterRole $2 [""] [namespaces] [list, watch]
ClusterRole $2 [""] [nodes] [get, list, watch]
ClusterRole $2 [authentication.k8s.io] [tokenreviews] [create]
ClusterRole $2 [spillway.dev] [clusterbudgets/status] [patch]
ClusterRole $2 [spillway.dev] [clusterbudgets] [get, list, watch]
ClusterRole $2-gateway [authentication.k8s.io] [tokenreviews] [create]
Role kube-node-lease/$2-node-leases [coordination.k8s.io] [leases] [get, list, watch]
Role spillway-system/spillway-certificates [""] [secrets] [create]
Role spillway-system/spillway-certificates [""] [secrets] [spillway-ca, spillway-gateway-tls] [get, update]
Role spillway-system/spillway-certificates [""] [services] [spillway-gateway] [get]
Role spillway-system/spillway-gateway [""] [secrets] [spillway-gateway-tls] [get]
Role spillway-system/spillway-gateway [coordination.k8s.io] [leases] [spillway-controller] [get]
Role spillway-system/spillway-leader [coordination.k8s.io] [leases] [create]
Role spillway-system/spillway-leader [coordination.k8s.io] [leases] [spillway-controller] [get, update]
R
    } | sort
}
exactly() { # exactly WORK_ROLE CLUSTER_NAME [FLAGS...]
    local role=$1 name=$2; shift 2
    diff <(expected "$role" "$name") <(rights "$@")
}
check "rights: these and no others" exactly "ClusterRole spillway" spillway
check "rights with one namespace: cluster-wide on nodes, namespaces, ClusterBudgets and token reviews only" exactly "Role team-a/spillway" spillway-team-a --set namespaceScope=team-a
bound() { # the gateway's roles are bound to the gateway, all others to the controller
    without_crds --show-only templates/rbac.yaml | awk '
        /^---/ { role = "" } /^roleRef:/ { role = "?" } role == "?" && /^  name: / { role = $2 } /^  - kind: ServiceAccount/ { subject = 1 }
        subject && /^    name: / { print role, $2; subject = 0 }' | sort
}
bound_right() { diff <(printf '%s\n' "spillway spillway" "spillway-certificates spillway" "spillway-gateway spillway-gateway" "spillway-gateway spillway-gateway" "spillway-leader spillway" "spillway-node-leases spillway") <(bound); }
check "the gateway's roles are its own, all others the controller's" bound_right
for setting in 'cidrs=["192.0.2.0/24"]' 'audiences=["https://kubernetes.default.svc"]'; do
  check "refuses ${setting%%=*} of agents outside the cluster where none are taken" refused "need gateway.external.enabled" render --set-json "gateway.external.$setting"
done
check "refuses one account for both" refused "must not hold the controller's rights" render --set gateway.serviceAccount.create=false --set gateway.serviceAccount.name=spillway
edit_rules() { without_crds --show-only templates/aggregated.yaml | grep -v '^#' | sed -n '/name: spillway-edit/,/^---/p'; }
check "edit cannot change grants" lacks grants edit_rules
check "edit cannot change cluster budgets" lacks clusterbudgets edit_rules
check "edit cannot write status" lacks /status edit_rules
check "edit may attach to Chat agents" says agents/attach edit_rules
view_rules() { without_crds --show-only templates/aggregated.yaml | grep -v '^#' | sed '/name: spillway-edit/,$d'; }
check "view may not" lacks attach view_rules
grants_role() { without_crds --show-only templates/aggregated.yaml | grep -v '^#' | sed -n '/name: spillway-grants/,$p'; }
check "who may make grants has a role of its own" says grants grants_role
check "which is added to no other" lacks aggregate-to grants_role
check "edit cannot approve calls of privileged programs" lacks approve edit_rules
approver_role() { without_crds --show-only templates/aggregated.yaml | grep -v '^#' | sed -n '/name: spillway-approver/,/^---/p'; }
check "who approves them has a role of its own" says "verbs: [get, list, watch, approve]" approver_role
check "which admin has too" says aggregate-to-admin approver_role
check "and edit has not" lacks aggregate-to-edit approver_role
own_rules() { without_crds --show-only templates/rbac.yaml | grep -v '^#'; }
check "nor has an account of Spillway" lacks approve own_rules
every_rule() { without_crds --show-only templates/aggregated.yaml --show-only templates/rbac.yaml | grep -v '^#'; }
check "no role opens agents' pods" lacks exec every_rule

# --- the profile on nodes ---------------------------------------------------------------------------------------------
# shellcheck source=tests/chart-node-profile.sh
. tests/chart-node-profile.sh

# --- labels, pods and hooks -------------------------------------------------------------------------------------------
# shellcheck source=tests/chart-values.sh
. tests/chart-values.sh

# --- values.schema.json refuses, and says where -----------------------------------------------------------------------
for entry in 'deny={*:443}' 'deny={a.example.com:0443}' 'allowPrivate={npm.example.com:65536}' 'allowPrivate={10.0.0.1:443}' 'allowSets.npm={npm.example.com}'; do
  check "refuses egress.$entry, as the operator would" refused "does not match pattern" render --set "egress.$entry"
done
check "refuses an unknown value" refused replicas render --set replicas=3
check "refuses an unknown nested value" refused repo render --set image.repo=x
check "refuses words for a number" refused replicaCount render --set-string replicaCount=two
check "refuses a word for a boolean" refused install render --set-string crds.install=yes
check "refuses an unknown log format" refused logFormat render --set logFormat=xml
check "refuses concurrency 0, which would be no bound" refused concurrency render --set concurrency=0
check "refuses a namespace that is none" refused namespaceScope render --set namespaceScope=Team_A
check "refuses a digest that is none" refused digest render --set image.digest=sha256:12
check "refuses a quantity that is none" refused memory render --set resources.limits.memory=lots
webhook='notifications.webhooks=[{"name":"ops","format":"Slack","secretRef":{"name":"s","authorizationKey":"a"}}]'
check "a webhook's file names the file of its URL" says '/var/run/secrets/spillway.dev/webhooks/ops/url' without_crds --set-json "$webhook"
check "without webhooks no object names one" lacks webhook without_crds
check "refuses a webhook whose URL is no Secret" refused url render --set-json 'notifications.webhooks=[{"name":"ops","url":"https://x"}]'
check "refuses addresses of an origin that are none" refused cidrs render --set-json 'gateway.modelOrigins=[{"origin":"https://a.example","cidrs":["a.example"]}]'
check "refuses a flavor that is none" refused flavor render --set networkPolicy.flavor=calico
check "refuses cilium without the pods that answer DNS" refused dnsLabels render --set-json 'networkPolicy={"flavor":"cilium","cilium":{"dnsLabels":{"k8s-app":null,"io.kubernetes.pod.namespace":null}}}'
check "refuses a port that is none" refused ports render --set 'networkPolicy.apiServer.ports={70000}'
check "refuses an unknown toleration field" refused effects render --set-json 'tolerations=[{"effects":"NoSchedule"}]'
check "refuses a profile that is none" refused profile render --set clusterBudget.profile=large
check "refuses an account that nobody makes or names" refused name render --set serviceAccount.create=false
check "refuses a gateway's account that nobody makes or names" refused name render --set gateway.serviceAccount.create=false
check "refuses an unknown value of the gateway" refused replicas render --set gateway.replicas=3
check "refuses less than no gateway" refused replicaCount render --set gateway.replicaCount=-1
check "refuses a gateway's quantity that is none" refused memory render --set gateway.resources.limits.memory=lots
check "refuses a canary without a port" refused canaries render --set 'agents.canaries={10.0.0.1}'
check "refuses a canary by name, which agents cannot look up" refused canaries render --set 'agents.canaries={kubernetes.default:443}'
check "refuses an unknown value of the agents" refused canary render --set 'agents.canary={10.0.0.1:443}'
check "refuses a word for the policies" refused enabled render --set-string admissionPolicies.enabled=yes
check "refuses an unknown answer about namespaces" refused podSecurity render --set admissionPolicies.podSecurity=Maybe
check "refuses an exempt user without a name" refused exemptUsers render --set-json 'admissionPolicies.exemptUsers=[""]'
check "refuses a reserved label on its own pods, which the policies would refuse" refused "invalid propertyName 'spillway.dev/agent'" render --set 'podLabels.spillway\.dev/agent=x'
check "refuses a service monitor without a service" refused service.enabled render --set serviceMonitor.enabled=true --set service.enabled=false
every_value_is_shown() { # a value that is missing in the schema makes the rendering of the defaults fail
    local key missing=0
    while read -r key; do
        grep -qE "^$key:" "$CHART/values.yaml" || { echo "values.yaml lacks $key"; missing=1; }
    done < <(sed -n '/^  "properties": {/,$s/^    "\([a-zA-Z]*\)": {.*/\1/p' "$CHART/values.schema.json")
    return $missing
}
check "values.yaml shows every value of the schema" every_value_is_shown

# --- config/ ----------------------------------------------------------------------------------------------------------
for folder in config/default config/samples config/samples/codex config/samples/toolsets config/samples/toolsets/*/ e2e/codex; do
    builds() { [ -n "$(kubectl kustomize "$folder")" ]; }
    check "kustomize builds $folder" builds
done
# The example in docs/how-to/install.md: a user's own image, for the operator and for the sidecars.
sed -n '/^apiVersion: kustomize.config.k8s.io/,/^```/p' docs/how-to/install.md | sed '/^```/d' > "$work/example.yaml"
own_image() {
    rm -rf "$work/config" "$work/crds"; cp -r config crds "$work/"; mkdir "$work/config/mine"
    sed 's|\.\./\.\./config/default|../default|' "$work/example.yaml" > "$work/config/mine/kustomization.yaml"
    [ "$(kubectl kustomize "$work/config/mine" | grep -cE '(image|value): REGISTRY/spillway:0.1.0')" = 3 ] && ! kubectl kustomize "$work/config/mine" | grep spillway/spillway
}
check "kustomize puts another image everywhere" own_image
all_listed() {
    local file folder missing=0
    for file in config/samples/*.yaml config/samples/codex/*.yaml; do
        folder=${file%/*} file=${file##*/}
        [ "$file" = kustomization.yaml ] || grep -qx "  - $file" "$folder/kustomization.yaml" || { echo "$file is not in the kustomization"; missing=1; }
        head -n 1 "$folder/$file" | grep -q '^# ' || { echo "$file does not begin with a comment that says what it shows"; missing=1; }
    done
    return $missing
}
check "every sample is listed and says what it shows" all_listed

# --- several versions of Kubernetes ---------------------------------------------------------------------------------------
# shellcheck source=tests/chart-kubernetes.sh
. tests/chart-kubernetes.sh

# --- a real server: rights and policies of users ------------------------------------------------------------------------
# shellcheck source=tests/chart-live.sh
. tests/chart-live.sh

# --- a real server judges ---------------------------------------------------------------------------------------------
export KUBECONFIG=${SPILLWAY_KUBECONFIG:-${KUBECONFIG:-}}
if [ -n "$KUBECONFIG" ] && kubectl version --request-timeout=5s >/dev/null 2>&1; then
    # In namespace default, which always exists, and under a name that no installation has: otherwise the objects would count as
    # changes of that installation's objects. Without the pod of `helm test`: its account is not there in a dry run.
    judged() { helm template chart-test "$CHART" --namespace default --skip-tests "$@" | kubectl apply --server-side --force-conflicts --dry-run=server -f -; }
    check "the server takes the defaults" judged
    check "the server takes one namespace" judged --set namespaceScope=default
    check "the server takes one replica without a policy" judged --set replicaCount=1 --set networkPolicy.enabled=false
    check "the server takes no admission policies" judged --set admissionPolicies.enabled=false
    check "the server takes exempt users" judged --set-json 'admissionPolicies.exemptUsers=["a\"b", "c<d>&'"'"'e"]'
    check "the server takes the profile on nodes" judged --set sandbox.nodeProfile.enabled=true
    check "the server takes canaries" judged --set 'agents.canaries={10.0.0.1:443}'
    check "the server takes a closed policy" judged --set 'networkPolicy.apiServer.cidrs={10.0.0.1/32}' --set 'networkPolicy.ingressFrom[0].podSelector.matchLabels.a=b'
    notes() { helm install chart-test "$CHART" --namespace default --dry-run=server --set crds.install=false "$@" | sed -n '/^NOTES:/,$p'; }
    check "the notes say that the API server's address is not known" says "any address on port 443, 6443" notes --set networkPolicy.apiServer.lookup=false
    check "and nothing of it where it is" lacks "any address on port" notes --set 'networkPolicy.apiServer.cidrs={10.0.0.1/32}'
    if [ -z "$(kubectl get crd ciliumnetworkpolicies.cilium.io --ignore-not-found -o name)" ]; then
        cilium_crd=1
        kubectl create -f tests/cilium-crd.yaml > /dev/null && kubectl wait --for=condition=Established crd/ciliumnetworkpolicies.cilium.io --timeout=30s > /dev/null
    fi
    soon_judged() { local end=$((SECONDS + 30)); until judged "$@" > "$work/judged" 2>&1; do [ $SECONDS -lt $end ] || { cat "$work/judged"; return 1; }; sleep 0.5; done; }
    check "the server takes cilium" soon_judged --set networkPolicy.flavor=cilium --set-json "$two_origins" --set-json "$webhook" \
        --set 'egress.ports={443}' --set 'egress.allowPrivate={a.example.com:443}'
    check "with cilium the notes say nothing of addresses" lacks "any address on port" notes --set networkPolicy.flavor=cilium
    [ -z "$cilium_crd" ] || { kubectl delete -f tests/cilium-crd.yaml > /dev/null; cilium_crd=; }
    looked_up() { helm install chart-test "$CHART" --namespace default --dry-run=server --set crds.install=false "$@" | awk '/^kind: NetworkPolicy/ { on = 1 } /^---/ { on = 0 } on'; }
    address=$(kubectl get endpointslice -n default kubernetes -o jsonpath='{.endpoints[0].addresses[0]}') port=$(kubectl get endpointslice -n default kubernetes -o jsonpath='{.ports[0].port}')
    if [ "$port" != 443 ] && ! kubectl api-versions | grep -qx cilium.io/v2; then
        check "and says so" says "API server at $address/" notes
        check "helm finds the API server" says "cidr: \"$address/" looked_up
        check "and its port" says "port: $port" looked_up
        check "unless it is told" lacks "$address/" looked_up --set 'networkPolicy.apiServer.cidrs={192.0.2.1/32}'
        check "or told not to look" lacks "$address/" looked_up --set networkPolicy.apiServer.lookup=false
    fi
    check "the server takes webhooks" judged --set-json "$webhook"
    if kubectl get crd agentpools.spillway.dev >/dev/null 2>&1; then
        samples() { kubectl kustomize "$1" | sed 's/^  namespace: demo$/  namespace: default/' | kubectl apply --server-side --force-conflicts --dry-run=server -f -; }
        check "the server takes the samples" samples config/samples
        check "the server takes the sample of Codex" samples config/samples/codex
        check "the server takes the samples of programs" samples config/samples/toolsets
    else
        echo "skip the server takes the samples: it has no CustomResourceDefinitions of Spillway"
    fi

    installed=$(kubectl get validatingadmissionpolicies -l app.kubernetes.io/part-of=spillway -o name)
    if ! kubectl auth can-i impersonate users --all-namespaces >/dev/null 2>&1; then
        echo "skip rights and policies: this user may not impersonate other users"
    elif [ -n "$installed" ]; then
        echo "skip rights and policies: the installed ones would also apply to the test's pods: ${installed//$'\n'/, }"
    else
        rights_and_policies
    fi
else
    echo "skip a real server judges: no SPILLWAY_KUBECONFIG or KUBECONFIG with a server that answers"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
