#!/usr/bin/env bash
# Checks that the running cluster behaves like a real one. Each check prints a line; the last line is "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
if [ "${1:-}" != --inside ]; then exec "$here/cluster" run "$here/check.sh" --inside; fi

log=$(mktemp); trap 'rm -f "$log"' EXIT
passed=0 failed=0
result() { if [ "$1" = 0 ]; then echo "ok   $2"; passed=$((passed + 1)); else echo "FAIL $2: $(tr '\n' '|' <<< "$3" | cut -c1-300)"; failed=$((failed + 1)); fi; }
# expect NAME PATTERN COMMAND... : output (both streams) must match the extended regular expression
expect() { local name=$1 pattern=$2 out; shift 2; out=$("$@" 2>&1); grep -Eq -- "$pattern" <<< "$out"; result $? "$name" "$out"; }
# refuse NAME PATTERN COMMAND... : output must not match
refuse() { local name=$1 pattern=$2 out; shift 2; out=$("$@" 2>&1); ! grep -Eq -- "$pattern" <<< "$out"; result $? "$name" "$out"; }
# eventually SECONDS PATTERN COMMAND... : print the last output when it matches or time is up
eventually() {
    local end=$((SECONDS + $1)) pattern=$2 out; shift 2
    while out=$("$@" 2>&1); ! grep -Eq -- "$pattern" <<< "$out" && [ "$SECONDS" -lt "$end" ]; do sleep 0.2; done
    echo "$out"
}
m() { kubectl -n check-main "$@"; }
r() { kubectl -n check-restricted "$@"; }
p() { kubectl -n check-policy "$@"; }
ready() { kubectl wait --for=condition=Ready --timeout=60s "$@"; }
clean() { kubectl delete namespace check-main check-restricted check-policy check-quota --ignore-not-found "$@" >/dev/null 2>&1; }

clean   # after an earlier run that was interrupted
node=$SPILLWAY_CLUSTER-node
expect node 'v1\.[0-9.]+ .*containerd://' kubectl get node "$node" -o wide
# gitVersion is set by the build, emulationMinor is a constant in the sources: both must be of the version that is pinned.
server=$(kubectl get --raw /version | jq -r '.gitVersion + " " + .emulationMajor + "." + .emulationMinor')
expect "version-is-pinned (${server% *})" "^${server#* } $(sed 's/^v//; s/ .*//' <<< "$server")\$" "$here/cluster" versions
expect version-of-kubelet "^${server% *}\$" kubectl get node "$node" -o jsonpath='{.status.nodeInfo.kubeletVersion}'
expect node-userns-handler '"userNamespaces":true' kubectl get node "$node" -o jsonpath='{.status.runtimeHandlers}'

start=$(date +%s%N)
for n in check-main check-restricted check-policy check-quota; do kubectl create namespace $n >/dev/null; done
for n in check-main check-restricted check-policy check-quota; do eventually 20 default kubectl -n $n get serviceaccount default -o name >/dev/null; done
kubectl apply --server-side -f "$here/check.yaml" >/dev/null
expect pod-ready 'condition met' ready -n check-main pod/web
echo "     pod web ready $((($(date +%s%N) - start) / 1000000)) ms after its namespace was requested, together with ten others"
expect logs 'hello from web' m logs web
expect exec 'uid=0' m exec web -- id
ready -n check-main pod/agent >/dev/null
expect demo-agent-image 'agent: agent on agent, step 1' eventually 5 step m logs agent
expect demo-agent-user 'uid=10001' m exec agent -- id

expect restricted-accepted 'pod/userns condition met' ready -n check-restricted pod --all
expect restricted-refuses 'violates PodSecurity' r run bad --image=localhost/spillway/testbox:dev
expect restricted-status 'CapEff:.0+ NoNewPrivs:.1 Seccomp:.2' bash -c "kubectl -n check-restricted exec plain -- grep -E 'NoNewPrivs|Seccomp:|CapEff' /proc/self/status | tr '\n' ' '"
expect seccomp-localhost 'Operation not permitted' r exec localhost -- mkdir /tmp/x
expect landlock 'ABI [1-9]' r exec plain -- landlock
expect user-namespace '^ +0 +[1-9][0-9]+ +65536' r logs userns
expect user-namespace-volume '^ok$' r logs userns
expect user-namespace-landlock 'ABI [1-9]' r exec userns -- landlock

# Like hibernation: the pod is deleted, the volume stays, and the next pod reads the data of the first one.
r get pod userns -o json | jq '{apiVersion, kind, metadata: {name: "woken", namespace: .metadata.namespace}, spec: (.spec | del(.nodeName))}' > "$log"
r delete pod userns >/dev/null; kubectl create -f "$log" >/dev/null
expect volume-survives-its-pod '^kept$' eventually 20 kept r logs woken
volume=$(r get pvc home -o jsonpath='{.spec.volumeName}')
r delete pod/woken pvc/home >/dev/null
expect volume-is-reclaimed 'NotFound' eventually 20 NotFound kubectl get pv "${volume:-none}"

ip=$(m get service web -o jsonpath='{.spec.clusterIP}')
ready -n check-policy pod --all >/dev/null
expect service '^web$' eventually 5 '^web$' p exec free -- timeout 2 wget -qO- "http://$ip/"
expect service-from-host '^web$' eventually 5 '^web$' curl -s --max-time 2 "http://$ip/"
# shellcheck disable=SC2016
expect api-in-cluster '400 Bad Request' m exec web -- sh -c 'timeout 2 wget -qO- http://$KUBERNETES_SERVICE_HOST:443/'
if kubectl -n kube-system get service kube-dns >/dev/null 2>&1; then
    expect dns '^web$' p exec free -- timeout 2 wget -qO- http://web.check-main.svc.cluster.local/
fi
if "$here/cluster" pid s3 >/dev/null 2>&1; then
    s3() { curl -s --max-time 5 --aws-sigv4 aws:amz:us-east-1:s3 --user spillway-test:spillway-test-secret -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@"; }
    s3=http://10.100.0.1:7070/artifacts
    echo 'hello from s3' > "$log"; s3 -T "$log" "$s3/check/object"
    expect s3-get '^hello from s3$' s3 "$s3/check/object"
    expect s3-list '<Key>check/object</Key>' s3 "$s3?list-type=2&prefix=check%2F"
    expect s3-refuses-without-signature '^403$' curl -s --max-time 5 -o /dev/null -w '%{http_code}' "$s3/check/object"
    expect s3-from-pod '403 Forbidden' p exec free -- timeout 2 wget -qO- "$s3/check/object"
    s3 -X DELETE "$s3/check/object"
fi
if "$here/cluster" pid gitea >/dev/null 2>&1; then
    token=$("$here/cluster" gitea-token)
    gitea() { curl -s --max-time 5 -H "Authorization: token $token" -H 'Content-Type: application/json' "$@"; }
    issues=http://10.100.0.1:3000/api/v1/repos/team/app/issues
    number=$(gitea -d '{"title": "check"}' "$issues" | jq .number)
    expect gitea-issue '^open check$' bash -c "curl -s '$issues/$number' | jq -r '.state + \" \" + .title'"
    expect gitea-comment '"body":"hello"' gitea -d '{"body": "hello"}' "$issues/$number/comments"
    expect gitea-refuses-without-token '^401$' curl -s --max-time 5 -o /dev/null -w '%{http_code}' -d title=check "$issues"
    expect gitea-from-pod '"title":"check"' p exec free -- timeout 2 wget -qO- "$issues/$number"
    gitea -X DELETE "$issues/$number"
fi
free=$(p get pod free -o jsonpath='{.status.podIP}')
expect policy-allows '^web$' eventually 5 '^web$' p exec fenced -- timeout 2 wget -qO- "http://$ip/"
refuse policy-denies-pod '^free$' p exec fenced -- timeout 2 wget -qO- "http://$free:8080/"
expect policy-denies-api 'refused' p exec fenced -- timeout 2 wget -qO- http://10.96.0.1:443/
expect policy-leaves-others '^free$' m exec web -- timeout 2 wget -qO- "http://$free:8080/"

q() { kubectl -n check-quota run "$1" --image=localhost/spillway/testbox:dev --image-pull-policy=IfNotPresent --restart=Never --command -- sleep 600; }
expect quota-allows 'created' eventually 5 created q a
expect quota-refuses 'exceeded quota' q b
expect limitrange-refuses 'maximum memory usage per Container' kubectl -n check-quota run big --image=x --overrides='{"spec":{"containers":[{"name":"big","image":"x","resources":{"limits":{"memory":"200Mi"}}}]}}'
ready -n check-quota pod/a >/dev/null
expect cgroup-limit '^67108864$' kubectl -n check-quota exec a -- sh -c 'cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max'
expect oom-killed '^137 OOMKilled$' eventually 20 OOM m get pod oom -o jsonpath='{.status.containerStatuses[0].state.terminated.exitCode} {.status.containerStatuses[0].state.terminated.reason}'

ready -n check-main pod/token pod/polite pod/deaf >/dev/null
token=$(m exec token -- cat /var/run/tok/t)
review() { printf '{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"%s","audiences":["%s"]}}' "$token" "$1" | kubectl create --raw /apis/authentication.k8s.io/v1/tokenreviews -f - | jq -c .status; }
expect token-audience '"authenticated":true' review spillway-gateway
expect token-other-audience 'invalid for the target audiences' review other

m logs -f polite > "$log" & follower=$!
took() { local s; s=$(date +%s%N); m delete pod "$1" >/dev/null; echo $((($(date +%s%N) - s) / 1000000)); }
ms=$(took polite); wait $follower
expect "term-handled ($ms ms; it takes 2 s)" 'got TERM' cat "$log"
ms=$(took deaf); [ "$ms" -gt 2800 ] && [ "$ms" -lt 7000 ]
result $? "grace-honoured ($ms ms; grace 3 s)" "$ms ms"
ms=$(took agent); [ "$ms" -lt 2500 ]
result $? "demo-agent-ends-at-once ($ms ms)" "$ms ms"

chart=$(mktemp -d)
mkdir "$chart/templates"
printf 'apiVersion: v2\nname: t\nversion: 0.1.0\n' > "$chart/Chart.yaml"
printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\n' > "$chart/templates/cm.yaml"
export HELM_CACHE_HOME=$chart/h HELM_CONFIG_HOME=$chart/h HELM_DATA_HOME=$chart/h
expect helm 'STATUS: deployed' helm -n check-main install rel "$chart" --wait
rm -rf "$chart"

audit=$("$here/cluster" audit-log)
m create configmap "counted-$$" >/dev/null
audited() { jq -r 'select(.objectRef.name=="counted-'$$'" and .objectRef.namespace=="check-main") | "\(.verb) by \(.userAgent) as \(.user.username) in \(.stage)"' "$audit"; }
expect audit-names-the-writer '^create by kubectl/.* as admin in ResponseComplete$' audited
expect audit-counts-once '^1$' bash -c "grep -c '\"name\":\"counted-$$\"' '$audit'"
refuse audit-has-no-reads '"verb":"(get|list|watch)"' grep -m1 -E '"verb":"(get|list|watch)"' "$audit"

clean --wait=false
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
