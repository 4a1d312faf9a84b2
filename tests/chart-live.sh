# Checks on a real API server the rights of accounts and users with the chart's roles and policies. tests/chart.sh sources this
# file, which uses its functions (check, says, lacks, refused), and runs it if there is a server without Spillway's policies.
# shellcheck shell=bash
# shellcheck disable=SC2154  # work and CHART are tests/chart.sh's
rights_and_policies() {
    live=spillway-chart-test-$$
    release=chart-test-spillway wide=chart-wide-$$
    controller=system:serviceaccount:$live:$release gateway=system:serviceaccount:$live:$release-gateway
    # as USER CMD... : kubectl as USER, in the test's namespace
    as() { local user=$1; shift; kubectl --namespace "$live" --as="$user" "$@"; }
    # soon CMD... : CMD succeeds within half a minute. API servers apply new policies and roles after a short delay.
    soon() { local end=$((SECONDS + 30)); until "$@" > "$work/soon" 2>&1; do [ $SECONDS -lt $end ] || { cat "$work/soon"; return 1; }; sleep 0.2; done; }
    # pod NAME LABELS [SPEC] : a pod that no scheduler takes. It never runs, so an allowed exec fails with another error.
    pod() {
        printf '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s","labels":{%s}},"spec":{"schedulerName":"nobody","automountServiceAccountToken":false,"containers":[{"name":"agent","image":"none","resources":{"requests":{"cpu":"1m"}}}]%s}}' "$1" "$2" "${3:+,$3}" > "$work/pod.json"
        echo "$work/pod.json"
    }
    may() { as "$1" create --dry-run=server -f "$2"; } # may USER FILE
    patches() { local user=$1 pod=$2 what=$3; shift 3; as "$user" patch pod "$pod" --dry-run=server -p "$what" "$@"; }
    # enters USER POD SUBRESOURCE : reaches the pod, which does not run, or is refused before
    enters() { as "$1" get --raw "/api/v1/namespaces/$live/pods/$2/$3"; }
    closed="on the pod of an agent" runs_nowhere="does not have a host assigned"
    labels="labels under spillway.dev/" ours='"app.kubernetes.io/managed-by":"spillway"'
    binding() { printf '{"apiVersion":"v1","kind":"Binding","metadata":{"name":"plain","labels":{"%s":"x"}},"target":{"kind":"Node","name":"none"}}' "$1" > "$work/binding.json"; as test-writer create --raw "/api/v1/namespaces/$live/$2?dryRun=All" -f "$work/binding.json"; }
    token() { as "$1" create token "$release" --audience "$2" "${@:3}"; }

    set_up() {
        kubectl create namespace "$live" &&
            helm template chart-test "$CHART" --namespace "$live" --set namespaceScope="$live" --set crds.install=false --set gateway.external.enabled=true --set artifacts.enabled=true --set 'admissionPolicies.exemptUsers={test-exempt}' \
                --show-only=templates/{admissionpolicies,controllerpolicies,podsecuritypolicy,aggregated,rbac,serviceaccount,service}.yaml > "$work/live.yaml" &&
            kubectl apply --server-side -f "$work/live.yaml" &&
            # The rights of a release for all namespaces. No process uses its accounts.
            helm template chart-test "$CHART" --namespace "$live" --set fullnameOverride="$wide" --set serviceAccount.create=false --set serviceAccount.name=wide \
                --set gateway.serviceAccount.create=false --set gateway.serviceAccount.name=wide-gateway --show-only=templates/rbac.yaml > "$work/wide.yaml" &&
            kubectl apply --server-side -f "$work/wide.yaml" &&
            # test-editor has the rights of a team. test-opener may also create agents/exec. test-writer makes the writes of kubelets
            # and schedulers. test-outsider may register agents outside the cluster, and make tokens. test-stranger has pods/attach
            # of Kubernetes, and no right of Spillway.
            kubectl create rolebinding -n "$live" test-edit --clusterrole=edit --user=test-editor --user=test-opener --user=test-exempt &&
            kubectl create rolebinding -n "$live" test-view --clusterrole=view --user=test-viewer &&
            role test-opener '{apiGroups: [spillway.dev], resources: [agents/exec], verbs: [create]}' test-opener &&
            role test-outsider '{apiGroups: [spillway.dev], resources: [agentpools/external], verbs: [create]}' test-outsider &&
            role test-tokens '{apiGroups: [""], resources: [serviceaccounts/token], verbs: [create]}' test-outsider &&
            role test-writer '{apiGroups: [""], resources: [pods, pods/status, pods/resize, pods/ephemeralcontainers, pods/binding, bindings], verbs: [get, patch, create]}' test-writer test-opener &&
            role test-stranger '{apiGroups: [""], resources: [pods/attach], verbs: [get, create]}' test-stranger
    }
    # role NAME RULE USER... : from a manifest, because `kubectl create role` refuses rules for unknown kinds
    role() {
        local name=$1 user; printf '{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: %s}, rules: [%s]}' "$name" "$2" | kubectl create -n "$live" -f - || return 1
        shift 2; for user in "$@"; do kubectl create rolebinding -n "$live" "$name-$user" --role="$name" --user="$user" || return 1; done
    }
    # made USER KIND NAME LABELS [REST] : whether USER may make it
    made() { printf '{"apiVersion":"%s","kind":"%s","metadata":{"name":"%s","labels":{%s}}%s}' "${2%:*}" "${2#*:}" "$3" "$4" "${5:+,$5}" | as "$1" create --dry-run=server -f -; }
    own_pods() {
        local agent='"spillway.dev/agent":"x",'"$ours" volume name token
        check "controller-pods: pods of agents only" soon refused "pods of agents only" may "$controller" "$(pod x '"app":"x"')"
        check "controller-pods: with its label" refused "pods of agents only" may "$controller" "$(pod x '"spillway.dev/agent":"x"')"
        check "controller-pods: it makes those" may "$controller" "$(pod x "$agent")"
        for volume in hostPath:'{"path":"/"}' secret:'{"secretName":"s"}' nfs:'{"server":"a","path":"/"}' csi:'{"driver":"a"}'; do
            check "controller-pods: no volume ${volume%%:*}" refused "volumes of these types only" may "$controller" "$(pod x "$agent" "\"volumes\":[{\"name\":\"v\",\"${volume%%:*}\":${volume#*:}}]")"
        done
        for volume in emptyDir:'{}' configMap:'{"name":"c"}' persistentVolumeClaim:'{"claimName":"c"}'; do
            check "controller-pods: volume ${volume%%:*}" may "$controller" "$(pod x "$agent" "\"volumes\":[{\"name\":\"v\",\"${volume%%:*}\":${volume#*:}}]")"
        done
        # projects SOURCE : a pod with a volume of that source
        projects() { pod x "$agent" "\"volumes\":[{\"name\":\"v\",\"projected\":{\"sources\":[$1]}}]"; }
        token="no ServiceAccount token but the gateway's"
        check "controller-pods: the gateway's token" may "$controller" "$(projects '{"serviceAccountToken":{"audience":"spillway.dev/gateway","path":"t"}}')"
        check "controller-pods: not the governor's" refused "$token" may "$controller" "$(projects '{"serviceAccountToken":{"audience":"spillway.dev/governor","path":"t"}}')"
        check "controller-pods: nor the API server's" refused "$token" may "$controller" "$(projects '{"serviceAccountToken":{"path":"t"}}')"
        check "controller-pods: nor a Secret among them" refused "$token" may "$controller" "$(projects '{"secret":{"name":"s"}}')"
        pod x "$agent" > /dev/null; sed -i 's/"automountServiceAccountToken":false/"automountServiceAccountToken":true/' "$work/pod.json"
        check "controller-pods: nor one that is mounted by itself" refused "$token" may "$controller" "$work/pod.json"
        # has CONTAINER_FIELD : a pod whose container has it
        has() { pod x "$agent" > /dev/null; sed -i "s|\"image\":\"none\"|\"image\":\"none\",$1|" "$work/pod.json"; echo "$work/pod.json"; }
        check "controller-pods: no Secret in the environment" refused "no Secret in its environment" may "$controller" "$(has '"env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]')"
        check "controller-pods: nor all of one" refused "no Secret in its environment" may "$controller" "$(has '"envFrom":[{"secretRef":{"name":"s"}}]')"
        check "controller-pods: other variables" may "$controller" "$(has '"env":[{"name":"A","value":"b"},{"name":"U","valueFrom":{"fieldRef":{"fieldPath":"metadata.uid"}}}]')"
        check "controller-pods: no privileges" refused "no privileged container" may "$controller" "$(has '"securityContext":{"privileged":true}')"
        check "controller-pods: no capability" refused "no privileged container" may "$controller" "$(has '"securityContext":{"capabilities":{"add":["NET_ADMIN"]}}')"
        check "controller-pods: no port of the node" refused "no privileged container" may "$controller" "$(has '"ports":[{"containerPort":80,"hostPort":80}]')"
        check "controller-pods: a container as it makes them" may "$controller" "$(has '"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}')"
        # The sidecar is an init container.
        check "controller-pods: nor in a sidecar" refused "no privileged container" may "$controller" "$(pod x "$agent" '"initContainers":[{"name":"link","image":"none","securityContext":{"privileged":true}}]')"
        check "controller-pods: a pod as it makes them" as "$controller" create --dry-run=server -f tests/agent-pod.json
        check "controller-pods: it deletes agents' pods" as "$controller" delete pod worker --dry-run=server
        check "controller-pods: and no others" refused "pods of agents only" as "$controller" delete pod plain --dry-run=server
        check "controller-pods: others make what they may" may test-editor "$(pod x '"app":"x"' '"volumes":[{"name":"v","secret":{"secretName":"s"}}]')"
    }
    own_objects() {
        local kind rest sort
        for kind in resourcequotas:v1:ResourceQuota:'"spec":{"hard":{"configmaps":"1000"}}' limitranges:v1:LimitRange:'"spec":{"limits":[]}' \
            persistentvolumeclaims:v1:PersistentVolumeClaim:'"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Mi"}}}'; do
            sort=${kind%%:*} kind=${kind#*:} rest=${kind#*:*:}; kind=${kind%":$rest"}
            check "controller: $sort with its label" made "$controller" "$kind" x "$ours" "$rest"
            check "controller: no $sort without" soon refused "writes and deletes only $sort with its label" made "$controller" "$kind" x '"a":"b"' "$rest"
            printf '{"apiVersion":"%s","kind":"%s","metadata":{"name":"theirs"},%s}' "${kind%:*}" "${kind#*:}" "$rest" | kubectl -n "$live" create -f - > /dev/null
            printf '{"apiVersion":"%s","kind":"%s","metadata":{"name":"ours","labels":{%s}},%s}' "${kind%:*}" "${kind#*:}" "$ours" "$rest" | kubectl -n "$live" create -f - > /dev/null
            check "controller: it deletes its own $sort" as "$controller" delete "$sort" ours --dry-run=server
            check "controller: and no other owner's" refused "only $sort with its label" as "$controller" delete "$sort" theirs --dry-run=server
        done
        for sort in resourcequotas limitranges; do
            label() { as "$controller" patch "$sort" "$1" --dry-run=server --type=merge -p '{"metadata":{"labels":{'"$ours"',"a":"b"}}}'; }
            check "controller: it changes its own $sort" label ours
            check "controller: it makes no $sort its own" refused "only $sort with its label" label theirs
            check "controller: nor gives its own away" refused "only $sort with its label" as "$controller" patch "$sort" ours --dry-run=server --type=merge -p '{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}'
        done
        check "controller: no ConfigMap by another name" refused "by these names only: spillway-ca" made "$controller" v1:ConfigMap other "$ours"
        check "controller: nor by one that the server makes up" refused "by these names only: spillway-ca" as "$controller" create --dry-run=server -f - <<<'{apiVersion: v1, kind: ConfigMap, metadata: {generateName: spillway-ca}}'
        check "controller: no Secret by another name" refused "by these names only: $release-ca, $release-gateway-tls" made "$controller" v1:Secret other "$ours"
        check "controller: no NetworkPolicy by another name" refused "by these names only: spillway-agents" made "$controller" networking.k8s.io/v1:NetworkPolicy other "$ours" '"spec":{"podSelector":{}}'
        if kubectl get crd budgets.spillway.dev > /dev/null 2>&1; then
            check "controller: no Budget by another name" refused "by these names only: default" made "$controller" spillway.dev/v1alpha1:Budget other "$ours" '"spec":{}'
            check "controller: Budget/default" made "$controller" spillway.dev/v1alpha1:Budget default "$ours" '"spec":{}'
        fi
        check "controller: others write what they may" made test-editor v1:ConfigMap other '"a":"b"'
    }
    # The objects of Toolsets: by their names and with their label only, and no Deployment with more than a bridge has.
    own_bridges() {
        local sort template
        local pods='"app.kubernetes.io/name":"spillway-bridge","app.kubernetes.io/instance":"tools"'
        # deploys NAME POD_FIELDS [CONTAINER_FIELDS] [LABELS] : the controller makes that Deployment
        deploys() {
            template='{"metadata":{"labels":{'${4:-$pods}'}},"spec":{"serviceAccountName":"tools-toolset","automountServiceAccountToken":false,"containers":[{"name":"bridge","image":"i"'${3:+,$3}'}]'${2:+,$2}'}}'
            printf '{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"%s","labels":{%s},"ownerReferences":[{"apiVersion":"spillway.dev/v1alpha1","kind":"Toolset","name":"%s","uid":"u"}]},%s}' "$1" "$ours" "${owner:-tools}" '"spec":{"selector":{"matchLabels":{'${4:-$pods}'}},"template":'"$template"'}' | as "$controller" create --dry-run=server -f -
        }
        check "controller-deployments: that of a Toolset" soon deploys tools-toolset ''
        owner=others check "controller-deployments: not that of another Toolset" refused "belongs to the Toolset that it is named after" deploys tools-toolset ''
        check "controller-deployments: of bridges only" refused "is for a bridge" deploys tools-toolset '' '' '"app":"x"'
        check "controller-deployments: not an agent" refused "has no labels of agents" deploys tools-toolset '' '' "$pods"',"spillway.dev/agent":"x"'
        for sort in hostNetwork hostPID hostIPC; do check "controller-deployments: no $sort" refused "the node's namespaces" deploys tools-toolset "\"$sort\":true"; done
        check "controller-deployments: a Secret" deploys tools-toolset '"volumes":[{"name":"v","secret":{"secretName":"theirs"}}]'
        check "controller-deployments: no folder of the node" refused "volumes of these types only" deploys tools-toolset '"volumes":[{"name":"v","hostPath":{"path":"/"}}]'
        check "controller-deployments: no Secret among projected sources" refused "project ConfigMaps and the bridge's token only" deploys tools-toolset '"volumes":[{"name":"v","projected":{"sources":[{"secret":{"name":"theirs"}}]}}]'
        check "controller-deployments: the bridge's token" deploys tools-toolset '"volumes":[{"name":"v","projected":{"sources":[{"serviceAccountToken":{"audience":"spillway.dev/bridge","path":"t"}}]}}]'
        check "controller-deployments: and no other" refused "the bridge's token only" deploys tools-toolset '"volumes":[{"name":"v","projected":{"sources":[{"serviceAccountToken":{"audience":"spillway.dev/gateway","path":"t"}}]}}]'
        check "controller-deployments: no Secret in the environment" refused "no Secret in the environment" deploys tools-toolset '' '"envFrom":[{"secretRef":{"name":"theirs"}}]'
        check "controller-deployments: no privileges" refused "no privileged container" deploys tools-toolset '' '"securityContext":{"privileged":true}'
        check "controller: the Service of a bridge" made "$controller" v1:Service tools-toolset "$ours" '"spec":{"selector":{'"$pods"'},"ports":[{"port":443}]}'
        check "controller: of bridges only" refused "Services for bridges only" made "$controller" v1:Service tools-toolset "$ours" '"spec":{"selector":{"app":"x"},"ports":[{"port":443}]}'
        check "controller: no port of the node" refused "Services for bridges only" made "$controller" v1:Service tools-toolset "$ours" '"spec":{"type":"NodePort","selector":{'"$pods"'},"ports":[{"port":443}]}'
        check "controller: no Service by another name" refused "of Toolsets only" made "$controller" v1:Service other "$ours" '"spec":{"selector":{'"$pods"'},"ports":[{"port":443}]}'
        check "controller: the account of a bridge" made "$controller" v1:ServiceAccount tools-toolset "$ours"
        check "controller: with its label" refused "only serviceaccounts with its label" made "$controller" v1:ServiceAccount tools-toolset '"a":"b"'
        check "controller: no other account" refused "of Toolsets only" made "$controller" v1:ServiceAccount other "$ours"
        check "controller: the NetworkPolicy of a bridge" made "$controller" networking.k8s.io/v1:NetworkPolicy tools-toolset "$ours" '"spec":{"podSelector":{"matchLabels":{'"$pods"'}}}'
        check "controller: around that bridge alone" refused "for the bridge of that Toolset only" made "$controller" networking.k8s.io/v1:NetworkPolicy other-toolset "$ours" '"spec":{"podSelector":{"matchLabels":{'"$pods"'}}}'
        check "controller: not around others' pods" refused "for the bridge of that Toolset only" made "$controller" networking.k8s.io/v1:NetworkPolicy tools-toolset "$ours" '"spec":{"podSelector":{}}'
    }
    # Answers to calls of privileged programs: from a user with the right, under the user's own name, on an Agent that exists.
    approvals() {
        local own=spillway.dev/v1alpha1:Agent
        # answer USER NAME TOOLSET [ID] : the answer that names a user
        answer() { printf '{"id":"%s","toolset":"%s","decision":"Approve","user":"%s"}' "${4:-a1}" "$3" "$2"; }
        answers() { local user=$1; shift; local IFS=,; as "$user" patch agent worker --type=merge -p '{"spec":{"toolApprovals":['"$*"']}}'; }
        role test-approver '{apiGroups: [spillway.dev], resources: [toolsets], resourceNames: [deploy], verbs: [approve]}' test-approver > /dev/null
        kubectl create rolebinding -n "$live" test-approver-edit --clusterrole=edit --user=test-approver > /dev/null
        made_agent() { printf '{"apiVersion":"spillway.dev/v1alpha1","kind":"Agent","metadata":{"name":"worker"},"spec":{"poolRef":{"name":"p"}}}' | as test-editor create -f -; }
        check "approvals: a team makes an Agent" soon made_agent
        check "approvals: none without the right" soon refused "needs the right to approve the Toolset deploy" answers test-editor "$(answer test-editor test-editor deploy)"
        check "approvals: with it under the own name" soon answers test-approver "$(answer test-approver test-approver deploy)"
        check "approvals: under no other name" refused "must be the name of the user" answers test-approver "$(answer test-approver test-editor deploy a2)"
        check "approvals: for no other Toolset" refused "needs the right to approve the Toolset other" answers test-approver "$(answer test-approver test-approver other a3)"
        check "approvals: for one Toolset in a request" refused "one Toolset only" answers test-approver "$(answer test-approver test-approver deploy a4)" "$(answer test-approver test-approver other a5)"
        check "approvals: the controller has no right" refused "needs the right to approve" answers "$controller" "$(answer "$controller" "$controller" deploy a6)"
        check "approvals: nobody changes another user's answer" refused "must be the name of the user" answers test-editor '{"id":"a1","toolset":"deploy","decision":"Deny","user":"test-approver"}'
        check "approvals: other changes are not checked" as test-editor patch agent worker --type=merge -p '{"spec":{"paused":true}}'
        check "approvals: and old answers are removed" answers test-editor
        check "approvals: no Agent is created with one" refused "created without answers" made test-approver "$own" new '"a":"b"' '"spec":{"poolRef":{"name":"p"},"toolApprovals":['"$(answer test-approver test-approver deploy)"']}'
    }
    # Checks the rights of tests/rights.txt, with one question to the server for each verb.
    the_matrix() {
        local who where resource name verbs verb user groups namespace named full group sub
        local -A users=([controller]=system:serviceaccount:$live:wide [single]=$controller [gateway]=$gateway [agent]=system:serviceaccount:$live:default
            [editor]=test-editor [viewer]=test-viewer)
        : > "$work/asked"; : > "$work/questions"
        while read -r who where resource name verbs; do
            case $who in ''|'#'*) continue ;; controller) full=$wide ;; *) full=$release ;; esac
            user=${users[$who]:?$who}
            groups='"system:authenticated"'
            [ "$who" = editor ] || [ "$who" = viewer ] || groups+=',"system:serviceaccounts","system:serviceaccounts:'$live'"'
            case $where in anywhere|elsewhere) namespace=default ;; release|served) namespace=$live ;; node-leases) namespace=kube-node-lease ;; cluster) namespace='' ;; *) echo "where? $where"; return 1 ;; esac
            named=${name//'{full}'/$full}; [ "$name" != - ] || named=''
            group=; case $resource in *.*) group=${resource#*.} ;; esac
            sub=; case ${resource%%.*} in */*) sub=${resource%%.*}; sub=${sub#*/} ;; esac
            resource=${resource%%.*} resource=${resource%%/*}
            for verb in get list watch create update patch delete deletecollection escalate bind impersonate; do
                case $verb in
                    escalate|bind) case $resource in *roles) ;; *) continue ;; esac ;;
                    impersonate) case $resource in users|groups|serviceaccounts) ;; *) continue ;; esac ;;
                esac
                case " $verbs " in *" $verb "*) echo -n 'true ' ;; *) echo -n 'false ' ;; esac
                echo "$who $where $resource${sub:+/$sub}${group:+.$group} $name $verb"
                printf '{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"%s","groups":[%s],"resourceAttributes":{"verb":"%s","group":"%s","resource":"%s","subresource":"%s","name":"%s","namespace":"%s"}}}\n' \
                    "$user" "$groups" "$verb" "$group" "$resource" "$sub" "$named" "$namespace" >> "$work/questions"
            done
        done < tests/rights.txt > "$work/asked"
        [ -s "$work/asked" ] || { echo "tests/rights.txt holds nothing"; return 1; }
        # A denied answer contains `allowed: false`.
        kubectl create -f "$work/questions" -o jsonpath='{.status.allowed}{"\n"}' > "$work/answers" || return 1
        [ "$(wc -l < "$work/answers")" = "$(wc -l < "$work/asked")" ] || { echo "$(wc -l < "$work/answers") answers to $(wc -l < "$work/asked") questions"; return 1; }
        paste -d' ' "$work/answers" "$work/asked" | awk '$1 != $2 { print "allowed: " $1 ", wanted: " $2 ":", $3, $4, $5, $6, $7; wrong = 1 } END { exit wrong }'
    }
    if ! set_up > "$work/set-up" 2>&1; then bad "the namespace of the test" "$(tail -n 5 "$work/set-up")"; return; fi

    check "labels: nobody makes a pod that looks like an agent's" soon refused "$labels" may test-editor "$(pod fake '"spillway.dev/agent":"fake"')"
    check "labels: nor the cluster's administrator" refused "$labels" kubectl -n "$live" create --dry-run=server -f "$work/pod.json"
    check "labels: nor with any other reserved label" refused "$labels" may test-editor "$(pod fake '"spillway.dev/pool":"p"')"
    check "labels: an exempt user may" may test-exempt "$work/pod.json"
    check "labels: other pods are not checked" as test-editor create -f "$(pod plain '"app":"x","spillway.development/a":"b"')"
    check "labels: the controller makes agents' pods" as "$controller" create -f "$(pod worker '"spillway.dev/agent":"worker","spillway.dev/mode":"Perseverance",'"$ours")"
    check "labels: and Chat agents'" as "$controller" create -f "$(pod chat '"spillway.dev/agent":"chat","spillway.dev/mode":"Chat",'"$ours")"
    check "labels: people may set others on them" patches test-editor worker '{"metadata":{"labels":{"team":"a"},"annotations":{"spillway.dev/note":"b"}}}'
    for sub in '' status; do
        flags=(${sub:+--subresource=$sub})
        for what in set:'"spillway.dev/type":"x"' change:'"spillway.dev/mode":"Chat"' remove:'"spillway.dev/agent":null'; do
            check "labels: nobody may ${what%%:*} one (pods${sub:+/$sub})" refused "$labels" patches test-opener worker "{\"metadata\":{\"labels\":{${what#*:}}}}" "${flags[@]}"
        done
        check "labels: nor give one to another pod (pods${sub:+/$sub})" refused "$labels" patches test-opener plain '{"metadata":{"labels":{"spillway.dev/agent":"plain"}}}' "${flags[@]}"
    done
    check "labels: a kubelet's status passes" patches test-writer worker '{"status":{"message":"as kubelets write it"}}' --subresource=status
    for sub in resize ephemeralcontainers; do # The API server ignores labels there today. If it ever accepts them, the policy refuses.
        unmoved() { local out; out=$(patches test-opener worker '{"metadata":{"labels":{"spillway.dev/mode":"Chat"}}}' --subresource="$sub" -o 'jsonpath={.metadata.labels.spillway\.dev/mode}' 2>&1); [ "$out" = Perseverance ] || grep -F "$labels" <<<"$out"; }
        check "labels: pods/$sub does not move one" unmoved
    done
    for path in pods/plain/binding bindings; do
        check "labels: a binding brings none (${path/plain\//})" refused "$labels" binding spillway.dev/agent "$path"
        check "labels: a binding with others passes (${path/plain\//})" binding team "$path"
    done

    for space in hostNetwork hostPID hostIPC; do
        check "pods: no agent gets $space, from any user" soon refused "the node's namespaces" may test-exempt "$(pod host '"spillway.dev/agent":"host"' "\"$space\":true")"
        check "pods: nor for the controller ($space)" refused "the node's namespaces" may "$controller" "$(pod host '"spillway.dev/agent":"host",'"$ours" "\"$space\":true")"
    done
    check "pods: nor shared processes" refused "may not share processes" may test-exempt "$(pod host '"spillway.dev/agent":"host"' '"shareProcessNamespace":true')"
    check "pods: other pods may" may test-editor "$(pod host '"app":"x"' '"hostPID":true')"
    image='{"spec":{"containers":[{"name":"agent","image":"another"}]}}'
    check "pods: an agent's image is fixed" refused "images of an agent's pod are fixed" patches test-editor worker "$image"
    check "pods: another pod's is not" patches test-editor plain "$image"
    check "pods: nor an agent's for who may open it" patches test-opener worker "$image"
    debug='{"spec":{"ephemeralContainers":[{"name":"debug","image":"another"}]}}'
    check "pods: agents get no ephemeral container" refused "ephemeral containers are refused" patches test-writer worker "$debug" --subresource=ephemeralcontainers
    check "pods: other pods do" patches test-writer plain "$debug" --subresource=ephemeralcontainers
    check "pods: and agents from who may open them" patches test-opener worker "$debug" --subresource=ephemeralcontainers

    # resized USER POD : prints what the pod would have then
    resized() { patches "$1" "$2" '{"spec":{"containers":[{"name":"agent","resources":{"requests":{"cpu":"8"}}}]}}' --subresource=resize -o 'jsonpath={.spec.containers[0].resources.requests.cpu}'; }
    check "pods: no user raises an agent's resources above its pool's" refused "resources of an agent's pod come from its pool" resized test-writer worker
    check "pods: other pods are resized" says 8 resized test-writer plain
    check "pods: and agents' by who may open them" says 8 resized test-opener worker

    check "exec: closed for a team" soon refused "exec is refused $closed" enters test-editor worker exec?command=x
    for sub in attach portforward; do check "exec: so is $sub" refused "$sub is refused $closed" enters test-editor worker $sub; done
    for name in worker worker:80 https:worker:80; do check "exec: so is proxy to $name" refused "proxy is refused $closed" enters test-editor $name proxy/; done
    for sub in exec?command=x portforward; do check "exec: on Chat agents ${sub%\?*} too" refused "${sub%\?*} is refused $closed" enters test-editor chat "$sub"; done
    # A controller aggregates roles, so `edit` has agents/attach after a short delay.
    check "exec: but a team attaches to them" soon refused "$runs_nowhere" enters test-editor chat attach
    check "exec: who has pods/attach alone does not" refused "right to create agents/attach" enters test-stranger chat attach
    for sub in exec?command=x attach portforward; do
        check "exec: other pods are open to ${sub%\?*}" refused "$runs_nowhere" enters test-editor plain "$sub"
        check "exec: agents' to who may open them (${sub%\?*})" refused "$runs_nowhere" enters test-opener worker "$sub"
        check "exec: and to administrators (${sub%\?*})" refused "$runs_nowhere" kubectl get --raw "/api/v1/namespaces/$live/pods/worker/$sub"
    done
    check "exec: other pods are open to proxy" refused "address not allowed" enters test-editor plain proxy/
    check "exec: agents' to who may open them (proxy)" refused "address not allowed" enters test-opener worker proxy/

    for audience in gateway governor bridge; do
        check "tokens: none for the $audience" soon refused "tokens for Spillway's audiences" token test-editor "spillway.dev/$audience"
        check "tokens: not beside another audience either" refused "tokens for Spillway's audiences" token test-editor other --audience "spillway.dev/$audience"
        check "tokens: kubelets get them ($audience)" token test-editor "spillway.dev/$audience" --as-group=system:nodes --as-group=system:authenticated
    done
    check "tokens: those for other audiences are allowed" token test-editor other
    check "tokens: who may open agents gets them" token test-opener spillway.dev/gateway
    check "tokens: who may register agents outside the cluster gets them for the gateway" soon token test-outsider spillway.dev/gateway
    check "tokens: but not bound to a pod" refused "tokens for Spillway's audiences" token test-outsider spillway.dev/gateway --bound-object-kind Pod --bound-object-name worker
    check "tokens: nor for the governor" refused "tokens for Spillway's audiences" token test-outsider spillway.dev/governor
    check "tokens: nor for the governor beside the gateway" refused "tokens for Spillway's audiences" token test-outsider spillway.dev/gateway --audience spillway.dev/governor

    proxy() { as "$1" get --raw "/api/v1/namespaces/$live/services/$2/proxy/"; }
    for name in $release-gateway https:$release-gateway:8443 $release-metrics:http; do
        check "services: no proxy to $name" soon refused "own Services is refused" proxy test-editor "$name"
    done
    kubectl -n "$live" create service clusterip other --tcp=80 > /dev/null
    check "services: other Services are open" refused "no endpoints available" proxy test-editor other
    artifacts() { as "$1" get --raw "/api/v1/namespaces/$live/services/https:$release-gateway:https/proxy$2"; }
    check "services: artifacts are open to people" refused "no endpoints available" artifacts test-editor /people/v1/artifacts/team/item/file
    check "services: and nothing else at the gateways" refused "own Services is refused" artifacts test-editor /openapi.json
    check "services: also not by a path that leads away" refused "own Services is refused" artifacts test-editor /people/v1/artifacts/../../openapi.json
    check "services: and these to who may open agents" refused "no endpoints available" proxy test-opener $release-gateway

    if kubectl get crd agents.spillway.dev > /dev/null 2>&1; then approvals; fi

    # The controller's own policies restrict the rights that roles cannot bind to names.
    own_pods
    own_objects
    own_bridges
    typed() { # the API server's type check of the expressions has no warnings
        local name
        for name in $(kubectl get -f "$work/live.yaml" -o name | grep '^validatingadmissionpolicy\.'); do
            kubectl wait "$name" --for=jsonpath='{.status.observedGeneration}'=1 --timeout=30s || return 1
            [ -z "$(kubectl get "$name" -o jsonpath='{.status.typeChecking.expressionWarnings}')" ] || { kubectl get "$name" -o yaml; return 1; }
        done
    }
    check "the expressions fit the types" typed

    check "rights: these and no others, as the server answers" the_matrix
    may_not() { [ "$(as "$@" 2>/dev/null)" = no ] || { echo "it may: $*"; return 1; }; }
    check "the controller lists its ConfigMap by name" as "$controller" get configmaps --field-selector=metadata.name=spillway-ca
    check "and no others" refused forbidden as "$controller" get configmaps
    applied() { printf '{apiVersion: v1, kind: ConfigMap, metadata: {name: spillway-ca}, data: {ca.crt: "%s"}}' "$1" | as "$controller" apply --server-side --field-manager=test -f -; }
    check "it makes it" applied one
    check "it changes it" applied two
    wall() { printf '{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: {podSelector: %s, policyTypes: [%s]}}' "$1" "$2" "$3" | as "$controller" apply --server-side --field-manager=test -f -; }
    around='{matchExpressions: [{key: spillway.dev/agent, operator: Exists}]}'
    check "it makes the NetworkPolicy around agents" wall spillway-agents "$around" Ingress
    check "it changes it" wall spillway-agents "$around" Egress
    check "controller: around agents alone" refused "for agents' pods only" wall spillway-agents '{}' Ingress
    check "rights: it changes no other" refused "by these names only: spillway-agents" wall other "$around" Ingress
    check "it reviews tokens" says yes as "$controller" auth can-i create tokenreviews.authentication.k8s.io
    check "it reads the gateway's Service" as "$controller" get service $release-gateway
    check "it makes Secrets" as "$controller" create secret generic $release-ca
    check "it reads its own" as "$controller" get secret $release-ca
    for what in "get secrets/another" "list secrets" "delete secrets/$release-ca" "create pods --subresource=exec" "create serviceaccounts --subresource=token" "list configmaps" "list services" "list deployments" "delete deployments/another" "delete services/another"; do
        # shellcheck disable=SC2086
        check "the controller may not $what" may_not "$controller" auth can-i $what
    done
    check "the gateway reads the leader's Lease" refused NotFound as "$gateway" get lease $release-controller
    check "and no others" refused Forbidden as "$gateway" get lease another
    check "it reviews tokens" says yes as "$gateway" auth can-i create tokenreviews.authentication.k8s.io
    check "and asks what users may do" says yes as "$gateway" auth can-i create subjectaccessreviews.authorization.k8s.io
    check "it may read its certificate" says yes as "$gateway" auth can-i get secrets/$release-gateway-tls
    for what in "get secrets/$release-ca" "list secrets" "update secrets/$release-gateway-tls" "update leases/$release-controller" "get pods" "list agents.spillway.dev" "create serviceaccounts --subresource=token"; do
        # shellcheck disable=SC2086
        check "the gateway may not $what" may_not "$gateway" auth can-i $what
    done

    pool() { printf '{apiVersion: spillway.dev/v1alpha1, kind: AgentPool, metadata: {name: pool}, spec: {type: worker, replicas: 1, agent: {image: a, command: [a]}}}' | kubectl -n "$live" apply --server-side --dry-run=server -f -; }
    definition=crds/agentpools.spillway.dev.yaml absent=
    kubectl get -f "$definition" > /dev/null 2>&1 || { absent=1; kubectl apply --server-side -f "$definition" > /dev/null; }
    kubectl wait -f "$definition" --for=condition=Established --timeout=30s > /dev/null
    check "pod-security: a pool in a namespace without restricted is warned of" soon says "does not enforce the Pod Security Standard restricted" pool
    kubectl label namespace "$live" pod-security.kubernetes.io/enforce=restricted > /dev/null
    check "pod-security: and not after the label is set" soon lacks "does not enforce" pool
    kubectl label namespace "$live" pod-security.kubernetes.io/enforce- > /dev/null
    [ -z "$absent" ] || kubectl delete -f "$definition" > /dev/null

    restricted() { # Pod Security admission has no warnings for the pods of the release
        kubectl label namespace "$live" pod-security.kubernetes.io/warn=restricted &&
            helm template chart-test "$CHART" --namespace "$live" --show-only templates/deployment.yaml --show-only templates/gateway.yaml | kubectl apply --dry-run=server -f -
    }
    check "the release's pods meet Pod Security restricted" lacks "would violate" restricted
}
