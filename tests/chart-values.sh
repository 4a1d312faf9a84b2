# shellcheck shell=bash
# Tests of labels, pods and hooks of the chart. tests/chart.sh reads this file, and has its helpers.

# in_object KIND NAME [FLAGS...] : the object as the chart renders it
in_object() {
    local kind=$1 name=$2; shift 2
    without_crds "$@" | awk -v kind="$kind" -v name="$name" '
        function out() { if (is && named) printf "%s", text; text = ""; is = named = 0 }
        /^---/ { out(); next }
        { text = text $0 "\n" }
        $0 == "kind: " kind { is = 1 }
        $0 == "  name: " name { named = 1 }
        END { out() }'
}
# object_says TEXT KIND NAME [FLAGS...]
object_says() { local text=$1; shift; says "$text" in_object "$@"; }
object_lacks() { local text=$1; shift; [ -n "$(in_object "$@")" ] || { echo "no such object"; return 1; }; lacks "$text" in_object "$@"; }
for component in '' -gateway; do
    prefix=${component:+gateway.}
    d() { local text=$1; shift; object_says "$text" Deployment "spillway$component" "$@"; }
    check "spillway$component: annotations of the Deployment" d "    reloader: on-change" --set deploymentAnnotations.reloader=on-change
    check "spillway$component: labels of pods" d '        team: "a"' --set podLabels.team=a
    check "spillway$component: annotations of pods" d "        note: b" --set podAnnotations.note=b
    check "spillway$component: a variable" d "            - name: HTTPS_PROXY" --set-json "${prefix}extraEnv=[{\"name\":\"HTTPS_PROXY\",\"value\":\"http://p:1\"}]"
    check "spillway$component: a variable of a Secret" d "secretKeyRef" --set-json "${prefix}extraEnv=[{\"name\":\"A\",\"valueFrom\":{\"secretKeyRef\":{\"name\":\"s\",\"key\":\"k\"}}}]"
    check "spillway$component: a volume" d "        - emptyDir: {}" --set-json "${prefix}volumes=[{\"name\":\"v\",\"emptyDir\":{}}]"
    check "spillway$component: and its mount" d "            - mountPath: /extra" --set-json "${prefix}volumeMounts=[{\"name\":\"v\",\"mountPath\":\"/extra\"}]"
    check "spillway$component: names of hosts" d "        - hostnames:" --set-json "${prefix}hostAliases=[{\"ip\":\"192.0.2.1\",\"hostnames\":[\"a.example\"]}]"
    check "spillway$component: pull secrets" d "        - name: pull" --set imagePullSecrets[0].name=pull
    check "spillway$component: those of all charts too" d "        - name: shared" --set imagePullSecrets[0].name=pull --set global.imagePullSecrets[0].name=shared
    once() { [ "$(in_object Deployment "spillway$component" --set imagePullSecrets[0].name=pull --set global.imagePullSecrets[0].name=pull | grep -c 'name: pull$')" = 1 ]; }
    check "spillway$component: a secret once, if both name it" once
    check "spillway$component: the priority class of all charts" d "priorityClassName: high" --set global.priorityClassName=high
    check "spillway$component: unless it has its own" d "priorityClassName: own" --set global.priorityClassName=high --set priorityClassName=own
    check "spillway$component: refuses a variable that the chart sets" refused extraEnv render --set-json "${prefix}extraEnv=[{\"name\":\"POD_NAMESPACE\",\"value\":\"x\"}]"
    check "spillway$component: refuses an option as a variable" refused extraEnv render --set-json "${prefix}extraEnv=[{\"name\":\"SPILLWAY_NAMESPACE\",\"value\":\"x\"}]"
    check "spillway$component: refuses the name of its own volume" refused volumes render --set-json "${prefix}volumes=[{\"name\":\"egress\",\"emptyDir\":{}}]"
    for path in /etc/spillway /etc/spillway/egress /var/run/secrets/kubernetes.io/serviceaccount / /bin relative; do
        check "spillway$component: refuses a mount at $path" refused volumeMounts render --set-json "${prefix}volumeMounts=[{\"name\":\"v\",\"mountPath\":\"$path\"}]"
    done
    check "spillway$component: refuses a name of hosts without an address" refused hostAliases render --set-json "${prefix}hostAliases=[{\"hostnames\":[\"a.example\"]}]"
done
check "the Service of the gateways takes labels" object_says '    mesh: "off"' Service spillway-gateway --set-string gateway.service.labels.mesh=off
check "and annotations" object_says "    lb: internal" Service spillway-gateway --set gateway.service.annotations.lb=internal
check "the Service of the metrics takes labels" object_says '    scrape: "yes"' Service spillway-metrics --set-string service.labels.scrape=yes
check "the controller's account takes labels" object_says '    cloud: "yes"' ServiceAccount spillway --set-string serviceAccount.labels.cloud=yes
check "and the gateway's" object_says '    cloud: "yes"' ServiceAccount spillway-gateway --set-string gateway.serviceAccount.labels.cloud=yes
check "and the one of the nodes" says '    cloud: "yes"' np --set-string sandbox.nodeProfile.serviceAccount.labels.cloud=yes
check "the profile on nodes has the priority class of all charts" says "priorityClassName: high" np --set global.priorityClassName=high

# --- common labels, and labels that select ----------------------------------------------------------------------------
everywhere() { # one label for each object, and one for each template of pods
    local rendered
    rendered=$(without_crds --set global.commonLabels.team=a --set sandbox.nodeProfile.enabled=true --set artifacts.enabled=true --set notifications.webhooks[0].name=ops --set notifications.webhooks[0].secretRef.name=s) || return 1
    diff <(grep -c '^kind: ' <<<"$rendered") <(grep -c '^    team: "a"$' <<<"$rendered") && [ "$(grep -cE '^ {8}team: "a"$' <<<"$rendered")" = 4 ]
}
check "a common label is on every object and pod" everywhere
check "an object's own label wins" object_says '    team: "b"' Service spillway-metrics --set global.commonLabels.team=a --set service.labels.team=b
check "CustomResourceDefinitions have none" lacks 'team: "a"' render --set global.commonLabels.team=a --show-only templates/crds/agents.spillway.dev.yaml
for value in global.commonLabels podLabels service.labels gateway.service.labels serviceAccount.labels gateway.serviceAccount.labels serviceMonitor.labels; do
    for label in app.kubernetes.io/name app.kubernetes.io/instance app.kubernetes.io/component app.kubernetes.io/part-of app.kubernetes.io/managed-by helm.sh/chart spillway.dev/agent; do
        check "refuses $label in $value" refused "$label" render --set "$value.${label//./\\.}=x"
    done
    untouched() { # also where nobody checks the schema
        local flags=(--skip-schema-validation --set serviceMonitor.enabled=true) label
        for label in app.kubernetes.io/name app.kubernetes.io/instance app.kubernetes.io/component spillway.dev/agent; do flags+=(--set "$value.${label//./\\.}=x"); done
        diff <(without_crds --set serviceMonitor.enabled=true) <(without_crds "${flags[@]}")
    }
    check "and $value changes no label that selects pods, if the schema is not checked" untouched
done
check "refuses an annotation of the chart on pods" refused spillway.dev/egress render --set 'podAnnotations.spillway\.dev/egress=x'

# --- pull secrets of agents -------------------------------------------------------------------------------------------
check "the controller is told the pull secrets of agents" told deployment --agent-image-pull-secret=registry --set agents.imagePullSecrets[0].name=registry
check "and none by default" lacks agent-image-pull-secret without_crds
check "those of the release are not for agents" lacks agent-image-pull-secret without_crds --set imagePullSecrets[0].name=pull --set global.imagePullSecrets[0].name=shared
check "refuses a pull secret of agents without a name" refused imagePullSecrets render --set-json 'agents.imagePullSecrets=["registry"]'

# --- hooks ------------------------------------------------------------------------------------------------------------
hook_rights() { # hook_rights TEMPLATE [FLAGS...] : kind, groups, resources, names, verbs
    local template=$1; shift
    without_crds --show-only "templates/$template.yaml" "$@" | awk '
        /^kind: / { kind = $2 } /apiGroups:/ { line = kind; names = "" } / (apiGroups|resources|verbs|resourceNames):/ { field = $0; sub(/^[ -]*[a-zA-Z]+: /, "", field); line = line " " field }
        / verbs:/ { print line }'
}
test_rights() { diff <(printf '%s\n' "Role [coordination.k8s.io] [leases] [spillway-controller] [get]" 'Role [""] [pods] [list]') <(hook_rights check); }
check "the test of the release may read its Lease and list its pods, and no more" test_rights
end_rights() { # end_rights KIND [FLAGS...]
    local kind=$1; shift
    diff <(printf '%s\n' "Role [apps] [deployments] [spillway] [get, patch]" 'Role [""] [pods] [list]' "$kind [spillway.dev] [agentpools, agents] [list]" | sort) <(hook_rights uninstall "$@" | sort)
}
check "the hook before uninstall may change one Deployment and list pools and agents, and no more" end_rights ClusterRole
check "in one namespace, if the release serves one" end_rights Role --set namespaceScope=team-a
check "where its role is" says "namespace: team-a" without_crds --show-only templates/uninstall.yaml --set namespaceScope=team-a
check "and no cluster's" lacks ClusterRole without_crds --show-only templates/uninstall.yaml --set namespaceScope=team-a
check "which it is told" says "only-namespace=team-a" without_crds --show-only templates/uninstall.yaml --set namespaceScope=team-a
check "its time is set" says "timeout=900" without_crds --show-only templates/uninstall.yaml --set uninstall.timeoutSeconds=900
check "it can be turned off" lacks pre-delete without_crds --set uninstall.endAgents=false
reused() { diff <(without_crds) <(without_crds --skip-schema-validation --set uninstall=null --set gateway.service=null --set global=null --set deploymentAnnotations=null --set extraEnv=null --set hostAliases=null --set agents.imagePullSecrets=null); }
check "helm upgrade --reuse-values from a chart without the new values renders the defaults" reused
check "refuses a time that is none" refused timeoutSeconds render --set uninstall.timeoutSeconds=0
end_variable() { in_object Deployment spillway | grep -A1 'name: SPILLWAY_END_AGENTS' | grep -q 'value: "false"'; }
check "the controllers end no agents before" end_variable
only_hooks() { # objects of these two templates that are no hooks would be part of the release
    local rendered
    rendered=$(without_crds --show-only templates/check.yaml --show-only templates/uninstall.yaml)
    diff <(grep -c '^kind: ' <<<"$rendered") <(grep -cE '^    helm.sh/hook: (test|pre-delete)$' <<<"$rendered")
}
check "all objects of hooks are hooks" only_hooks
not_selected() { ! without_crds --show-only templates/check.yaml --show-only templates/uninstall.yaml | grep -E '^ *app.kubernetes.io/name: spillway$'; }
check "no Service and no budget selects their pods" not_selected
check "they use the release's image" says 'image: "r/s:dev"' without_crds --show-only templates/check.yaml --set image.repository=r/s --set image.tag=dev
check "and its pull secrets" says "  - name: pull" without_crds --show-only templates/uninstall.yaml --set imagePullSecrets[0].name=pull
check "the test may reach the health of pods, if only some peers may" says "app.kubernetes.io/name: spillway-test" without_crds --show-only templates/networkpolicy.yaml --set-json 'networkPolicy.ingressFrom=[{"podSelector":{"matchLabels":{"a":"b"}}}]'
check "rbac.create=false makes no role for them" lacks "kind: Role" without_crds --show-only templates/check.yaml --set rbac.create=false
