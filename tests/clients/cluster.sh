#!/usr/bin/env bash
# Real clients with Spillway as it is shipped: sidecar, gateway and governor on a cluster of their own, the chart with its own
# limits, and the scripted model server in the place of the providers. It answers under their names (by the gateways' hosts file,
# and an authority that the gateways trust), so that samples are applied unchanged, with their origins.
#
#   - each sample about models makes a call, and its tokens are counted
#   - the Python clients get one final refusal of a spent budget, with a full message; they wait for a window that resets soon
#   - Codex makes one request on a spent budget, and its log names the budget
#   - a command of Codex that hangs is ended at the pool's time limit, and Codex and its model get an error
#
# This needs root, and the files that `make clients` builds. The clients run in the network of an agent's pod, and use nothing
# else of it. The cluster is removed if all checks pass.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster in any case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-clients}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
state=target/clients-cluster
# shellcheck source=e2e/codex/provider.sh
. e2e/codex/provider.sh
[ -z "${SPILLWAY_KUBECONFIG:-}" ] || { echo "clients: unset SPILLWAY_KUBECONFIG. The clients enter the network of a pod, so they need the local cluster" >&2; exit 2; }
inside() { "${cluster[@]}" run "$@"; }
step() { printf '\n== %s\n' "$*"; }
finish() {
    local status=$?
    if [ "$status" = 0 ] && [ "${E2E_KEEP:-}" != 1 ]; then "${cluster[@]}" down; else
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
    fi
    exit "$status"
}
trap finish EXIT

passed=0 failed=0
# check WHAT COMMAND... : runs the command, and counts whether it passes
check() {
    local said
    if said=$("${@:2}" 2>&1); then passed=$((passed + 1)); echo "ok   $1"; else failed=$((failed + 1)); echo "FAIL $1"; fi
    [ -z "$said" ] || echo "     ${said//$'\n'/$'\n'     }"
}
# soon COMMAND... : retries the command for up to two minutes
soon() {
    local end=$((SECONDS + 120)) said
    until said=$("$@" 2>&1); do
        [ "$SECONDS" -lt "$end" ] || { echo "$said"; return 1; }
        sleep 1
    done
    [ -z "$said" ] || echo "$said"
}

step "the cluster, the chart, and the provider"
tests/clients/run.sh install
ETCD_FSYNC=off "${cluster[@]}" up
"${cluster[@]}" load target/images/{spillway,demo-agent,model-server,codex-agent}.tar
certificate api.anthropic.com api.openai.com
# The first is the token in the sample.
provider "anthropic=put-yours-here,openai=$(cat "$state/token")" > /dev/null
# Only the providers' origins: the limits are the chart's own. The last origin opens the pod's port behind the Service.
jq -n --rawfile ca "$state/ca.crt" --arg own "https://$provider_address:8443" '{gateway: {modelOrigins: [
    ("https://api.anthropic.com", "https://api.openai.com", $own) | {origin: ., allowPrivate: true, caBundle: $ca}]}}' > "$state/values.json"
inside env HELM_CACHE_HOME="$PWD/target/helm" HELM_CONFIG_HOME="$PWD/target/helm" HELM_DATA_HOME="$PWD/target/helm" \
    helm upgrade --install spillway charts/spillway --namespace spillway-system --create-namespace --values "$state/values.json" \
    --set image.repository=localhost/spillway/spillway --set image.tag=dev --wait --timeout 5m > /dev/null
inside kubectl -n spillway-system patch deployment spillway-gateway -p '{"spec": {"template": {"spec": {"hostAliases": [
    {"ip": "'"$provider_address"'", "hostnames": ["api.anthropic.com", "api.openai.com"]}]}}}}'
inside kubectl -n spillway-system rollout status deployment/spillway-gateway --timeout=2m > /dev/null

step "the samples, unchanged"
# The samples with a credential or with models. Add a new one to this list, and a check of it below.
about_models() { diff <(grep -lrE '^  models:|model-credential$' config/samples | sort) <(printf 'config/samples/%s\n' \
    agentpool-buddy.yaml agentpool-prd.yaml agentpool-scheduler.yaml codex/agentpool.yaml models/credential.yaml); }
check "all samples about models are in this test" about_models
inside kubectl apply --server-side -f config/samples/namespace.yaml -f config/samples/models/credential.yaml
# As in a namespace in which pools ran before. A limit that is unset in it is the whole limit of the namespace.
inside kubectl apply --server-side -f - <<'Y'
apiVersion: spillway.dev/v1alpha1
kind: Budget
metadata: {name: default, namespace: demo}
spec: {}
Y
inside kubectl apply --server-side -k config/samples/codex
credential demo openai-credential https://api.openai.com
inside kubectl apply --server-side -f - <<'Y'
apiVersion: spillway.dev/v1alpha1
kind: WorkItem
metadata: {name: sample, namespace: demo}
spec: {queueRef: {name: code}, type: code, payload: "Write a file that says hello"}
Y
inside kubectl apply --server-side -f tests/clients/pools.yaml
calls_of() { count | jq -e --arg name "$1" '[.lines[] | select(.credential == $name and .finished > 0)] | length > 0' > /dev/null; }
check "Codex does an item with the sample's own limits, and the chart's" inside kubectl -n demo wait --for=condition=Complete workitem/sample --timeout=4m
check "the provider served it" calls_of openai
counted() {
    local told used
    told=$(count | jq '[.lines[] | select(.model == "gpt-6-sol") | .told.all] | add')
    used=$(inside kubectl -n demo get budget codex -o json | jq '[.status.windows[]? | select(.name == "daily") | .used] | add // 0')
    if [ "$told" != "$used" ] || [ "$told" = 0 ]; then echo "the provider reported $told tokens, and Budget/codex has $used"; return 1; fi
}
check "its Budget has the provider's count" soon counted

step "a command of Codex that hangs"
# An agent keeps the settings that its pool had at its creation. So the item needs a new agent.
none() { local agents; agents=$(inside kubectl -n demo get agentpool codex -o jsonpath='{.status.agents}'); [ "${agents:-0}" = 0 ] || { echo "agents: $agents"; return 1; }; }
check "its agent has gone" soon none
inside kubectl -n demo patch agentpool codex --type merge -p '{"spec": {"bulkhead": {"commandTimeoutSeconds": 5}}}'
inside kubectl apply --server-side -f - <<'Y'
apiVersion: spillway.dev/v1alpha1
kind: WorkItem
metadata: {name: hangs, namespace: demo}
spec: {queueRef: {name: code}, type: code, payload: "Hang for ever"}
Y
check "Codex does the item anyway" inside kubectl -n demo wait --for=condition=Complete workitem/hangs --timeout=4m
told() {
    local said
    said=$(requests | grep -o 'ran longer than the time limit of commands' | head -n 1)
    [ -n "$said" ] || { echo "no request has this text"; return 1; }
}
check "its model is told that the command was ended" told
inside kubectl -n demo wait --for=condition=Ready agentpool/spent agentpool/soon --timeout=3m > /dev/null

step "the agents that ship, with the samples' model"
# say WORDS TEXT : sets the model's answer to these words
say() {
    jq -n --arg to "$1" --arg say "$2" '{$to, $say}' > "$state/say.json"
    inside kubectl create --raw /api/v1/namespaces/models/services/https:model-server:8443/proxy/say -f "$state/say.json" > /dev/null
}
say "the clock runs backwards" '{"say": "One step.", "steps": [{"key": "a", "type": "bug", "task": "1 step: mend the clock"}]}'
say "a dark mode" '{"document": "# Dark mode", "steps": [{"key": "a", "type": "chore", "task": "1 step: measure it"}]}'
say "the sample speaks" '{"say": "I hear you."}'
inside kubectl apply --server-side -f config/samples/workqueues.yaml -f config/samples/think.yaml \
    -f config/samples/agentpool-scheduler.yaml -f config/samples/agentpool-prd.yaml -f config/samples/agentpool-buddy.yaml
inside kubectl apply --server-side -f - <<'Y'
apiVersion: spillway.dev/v1alpha1
kind: WorkItem
metadata: {name: asked, namespace: demo}
spec: {queueRef: {name: asks}, type: ask, payload: "the clock runs backwards"}
---
apiVersion: spillway.dev/v1alpha1
kind: WorkItem
metadata: {name: thought-of, namespace: demo}
spec: {queueRef: {name: ideas}, type: idea, payload: "a dark mode"}
Y
result_has() {
    local result
    inside kubectl -n demo wait --for=condition=Complete "workitem/$1" --timeout=3m > /dev/null
    result=$(inside kubectl -n demo get workitem "$1" -o jsonpath='{.status.result}')
    [[ $result == *"$2"* ]] || { echo "its result is: $result"; return 1; }
}
check "the scheduler makes work of words by its model" result_has asked "One step."
check "prd writes a document by its model" result_has thought-of "# Dark mode"
inside kubectl -n demo wait --for=condition=Ready agentpool/buddy --timeout=3m > /dev/null
buddy() { inside kubectl -n demo get pods -l spillway.dev/pool=buddy -o jsonpath='{.items[0].metadata.name}'; }
# The pod's log has its answer. Buddy speaks at a terminal, so `script` makes one. The timeout ends the attach.
(sleep 3; printf 'the sample speaks\n'; sleep 15) |
    inside timeout 20 script -qec "kubectl -n demo attach $(buddy) -c agent -it -q" /dev/null > "$state/attach.log" 2>&1 || true
hears() { inside kubectl -n demo logs "$(buddy)" -c agent | grep -F "I hear you."; }
check "buddy answers by its model who speaks at its terminal" soon hears

step "the clients, in the network of an agent"
# The calls above and these need more tokens than the chart gives a namespace in an hour.
inside kubectl patch clusterbudget default --type json \
    -p '[{"op": "replace", "path": "/spec/perNamespace/tokens/limits/0/tokens", "value": 1000000}]'
# in_pod POOL COMMAND... : runs the command in the network of the pool's agent, where the sidecar listens
in_pod() {
    local pool=$1 uid groups; shift
    uid=$(inside kubectl -n demo get pods -l "spillway.dev/pool=$pool" -o json |
        jq -r '[.items[] | select(.status.phase == "Running" and .metadata.deletionTimestamp == null)][0].metadata.uid')
    groups=$(grep -lsE "pod(${uid}|${uid//-/_})" /proc/[0-9]*/cgroup | head -n 1)
    [ -n "$groups" ] || { echo "this machine has no process of pod $uid"; return 1; }
    nsenter --net="${groups%/cgroup}/ns/net" -- "$@"
}
port=http://127.0.0.1:4101
spend() {
    in_pod spent curl -sS --noproxy '*' -o /dev/null -w '%{http_code}' -H 'content-type: application/json' "$port/claude/v1/messages" \
        -d '{"model": "scripted-spend--input-30000", "max_tokens": 8, "messages": [{"role": "user", "content": "Spend it."}]}'
}
spent() { local code; code=$(spend); [ "$code" = 402 ] || { echo "it answers $code"; return 1; }; }
check "a budget is spent" soon spent
next=$(date -u -d "$(date -u +%Y-%m-01) + 1 month" +%Y-%m-01)
words=(Budget/spent "0 of 30000 tokens are left" "$next" 'spec.tokens.limits[monthly].tokens')
check "each client asks once, and its error has every word" in_pod spent tests/clients/run.sh final \
    --anthropic "$port/claude" --chat "$port/chat/v1" --openai "$port/openai/v1" --model scripted-large --expect "${words[@]}"
check "each client waits for a window that resets soon, and goes on" in_pod soon tests/clients/run.sh waits \
    --anthropic "$port/claude" --chat "$port/chat/v1" --openai "$port/openai/v1" --model scripted-large --spend scripted-spend--input-5000

# The number of Responses calls that the gateways refused.
refused() {
    local pod
    for pod in $(inside kubectl -n spillway-system get pods -l app.kubernetes.io/component=gateway -o name); do
        inside kubectl get --raw "/api/v1/namespaces/spillway-system/pods/${pod#pod/}:8080/proxy/metrics"
    done | awk '/^spillway_gateway_request_seconds_count\{/ && /openai_responses/ && /outcome="refused"/ { sum += $NF } END { print sum + 0 }'
}
before=$(refused)
check "Codex ends, and its log says whose budget is spent" in_pod spent tests/clients/codex.sh refused "${words[@]}"
once() { local now; now=$(refused); [ $((now - before)) = 1 ] || { echo "requests: $((now - before))"; return 1; }; }
check "it made one request" once

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
